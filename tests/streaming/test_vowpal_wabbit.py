"""Progressive losses are Vowpal Wabbit's "average loss", where its steps are ours."""

import io
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file

from daskml_dist.linear_model import SGDClassifier


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("params", "truth"),
    [  # of Vowpal Wabbit 9.11.9, --loss_function logistic, over rcv1_small.dat
        ({"optimizer": "sgd", "learning_rate": 1.0}, 0.551768),  # --sgd -l 1 --power_t 0
        ({"optimizer": "adagrad", "learning_rate": 0.5}, 0.366226),  # --adaptive -l 0.5
    ],
)
def test_the_progressive_loss_is_the_average_loss(params, truth, data_dir: Path):
    path = data_dir / "rcv1_vw" / "rcv1_small.dat"
    X, y = load_svmlight_file(io.BytesIO(path.read_bytes().replace(b"|f", b"")))
    with SGDClassifier(penalty=None, **params).stream(classes=np.unique(y)) as stream:
        for row in range(X.shape[0]):
            stream.learn(X[row : row + 1], y[row : row + 1])
    assert stream.progressive_loss == pytest.approx(truth, abs=1e-6)
