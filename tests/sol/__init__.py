"""Tests of bounds, scores and hardware figures."""

import pytest

pytest.register_assert_rewrite("tests.sol.cases")
