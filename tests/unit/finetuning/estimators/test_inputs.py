"""The inputs of estimators that are read without a model."""

from __future__ import annotations

from decimal import Decimal

import pyarrow
import pytest

from unmask.errors import ValuesError
from unmask.finetuning.estimators.inputs import numbers_of


def test_a_column_of_decimals_is_read_as_numbers() -> None:
    column = pyarrow.array([Decimal("0.5"), Decimal("2")])
    assert numbers_of(column, 2) == [0.5, 2.0]
    with pytest.raises(ValuesError, match=r"y\[1\] is Decimal\('NaN'\): expected a finite number"):
        numbers_of([Decimal(1), Decimal("NaN")], 2)
