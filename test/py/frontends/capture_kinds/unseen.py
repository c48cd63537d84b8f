"""What docs/frontends.md names as not compared: an audit finds it."""

# Attributes come and go here.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false

import io
import itertools
import os
from typing import Any

import numpy as np


def large_array_in_place():
    weight = np.ones(10_000, np.float32)
    yield lambda x: x * weight[:4]
    weight[0] = 3


def environment_variable():
    os.environ["PYC_TEST_SCALE"] = "2"
    yield lambda x: x * float(os.environ["PYC_TEST_SCALE"])
    os.environ["PYC_TEST_SCALE"] = "3"


def open_file():
    file = io.StringIO("2")

    def f(x):
        file.seek(0)
        return x * float(file.read())

    yield f
    file.seek(0)
    file.write("3")


def iterator_that_moves():
    steps = itertools.cycle([2.0, 3.0])
    yield lambda x: x * next(steps)


def random_numbers():
    generator = np.random.default_rng(0)
    yield lambda x: x * generator.random()


def attribute_of_a_package():
    settings: Any = np
    settings.pyc_test_scale = 2.0
    yield lambda x: x * np.pyc_test_scale
    settings.pyc_test_scale = 3.0


def bases_of_a_class():
    class A:
        scale = 2.0

    class B:
        scale = 3.0

    class C(A):
        pass

    c = C()
    yield lambda x: x * c.scale
    C.__bases__ = (B,)


def element_of_a_very_long_list():
    scales = [2.0] * 5000
    yield lambda x: x * scales[0]
    scales[0] = 3.0
