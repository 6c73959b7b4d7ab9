"""Thread limits of BLAS libraries: one inside the context, restored afterwards."""

from daskml_dist.backends.host_threads import BlasThreads, find_blas_controller


def test_blas_uses_one_thread_inside_and_is_restored():
    libraries = find_blas_controller().select(user_api="blas").lib_controllers

    def counts():
        return [library.get_num_threads() for library in libraries]

    assert libraries
    with find_blas_controller().limit(limits=2, user_api="blas"):
        before = counts()
        with BlasThreads():
            assert set(counts()) == {1}
        assert counts() == before
