"""Which stream a call works on, asked of an array library that is not there."""

import types

import pytest

pytest.importorskip("tessera._core")

from tessera._arrays import Cupy  # noqa: E402


class Device:
    """As CuPy's: current within a `with`."""

    current = 0

    def __init__(self, index: int) -> None:
        self.index = index

    def __enter__(self) -> None:
        self.before, Device.current = Device.current, self.index

    def __exit__(self, *_: object) -> None:
        Device.current = self.before


def test_cupys_stream_is_that_of_the_arrays_device():
    streams = {0: types.SimpleNamespace(ptr=100), 1: types.SimpleNamespace(ptr=200)}
    namespace = types.SimpleNamespace(cuda=types.SimpleNamespace(get_current_stream=lambda: streams[Device.current]))
    library = Cupy(namespace)
    assert library.stream(types.SimpleNamespace(device=Device(0))) == 100
    assert library.stream(types.SimpleNamespace(device=Device(1))) == 200
    assert Device.current == 0
