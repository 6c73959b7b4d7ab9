"""The client catches the same errors that a worker raises."""

from __future__ import annotations

import re
from typing import Any

import pytest
from distributed import Client

from daskml_dist import errors
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier

ERRORS = sorted(name for name in errors.__all__ if name.endswith("Error"))


def test_an_error_of_a_worker_is_raised_unchanged_at_the_client(client: Client) -> None:
    def fail(kind: Any) -> None:
        raise kind("what to do about it")

    kinds = [getattr(errors, name) for name in ERRORS]
    failed = client.map(fail, kinds, pure=False)
    for kind, future in zip(kinds, failed, strict=True):
        error = future.exception(timeout=200)
        assert type(error) is kind
        assert error.args == ("what to do about it",)


def test_subclasses_of_errors_can_be_pickled() -> None:
    class Users(errors.CommunicationError):
        pass

    assert isinstance(Users.__new__(Users, "why"), ConnectionError)
    assert Users("why").args == ("why",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n_epochs", "Here it is named 'max_iter'."),
        ("lr", "Here it is named 'learning_rate'."),
        ("alpah", "Did you mean 'alpha'?"),
        ("run2__n_lanes", "Invalid parameter 'run2'"),
        ("unheard_of", "'warm_start']."),
    ],
)
def test_parameter_names_of_other_libraries_get_the_name_used_here(name: str, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=re.escape(message)):
        SGDClassifier().set_params(**{name: 1})
