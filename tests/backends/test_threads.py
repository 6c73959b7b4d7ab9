"""Threads of BLAS libraries: one within, what there was after."""

from daskml_dist.backends.host_threads import BlasThreads, find_blas_controller


def test_one_thread_within_and_what_there_was_after():
    libraries = find_blas_controller().select(user_api="blas").lib_controllers

    def counts():
        return [library.get_num_threads() for library in libraries]

    assert libraries
    with find_blas_controller().limit(limits=2, user_api="blas"):
        before = counts()
        with BlasThreads():
            assert set(counts()) == {1}
        assert counts() == before
