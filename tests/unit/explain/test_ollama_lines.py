"""What Ollama's own engine prints, lines as its journal has them."""

from nanoserve.explain.boot_log import read_boot_log
from nanoserve.units import GIB, MIB

_STAMP = "time=2025-09-11T00:42:50.484+02:00 level=INFO "
_CARD = (
    _STAMP
    + 'source=sched.go:498 msg="gpu memory" id=GPU-{id} library=CUDA available="{size}" {more}\n'
)
_MORE = 'free="23.5 GiB" minimum="457.0 MiB" overhead="0 B"'
LOADED = (
    _CARD.format(id=0, size="23.0 GiB", more=_MORE)
    + _CARD.format(id=1, size="22.0 GiB", more=_MORE)
    + _CARD.format(id=1, size="21.0 GiB", more=_MORE)
    + _STAMP
    + 'source=device.go:240 msg="model weights" device=CUDA0 size="14.5 GiB"\n'
    + _STAMP
    + 'source=device.go:240 msg="model weights" device=CUDA0 size="11.5 GiB"\n'
    + _STAMP
    + 'source=device.go:240 msg="model weights" device=CUDA1 size="11.5 GiB"\n'
    + _STAMP
    + 'source=device.go:245 msg="model weights" device=CPU size="680.0 MiB"\n'
    + _STAMP
    + 'source=device.go:251 msg="kv cache" device=CUDA0 size="450.0 MiB"\n'
    + _STAMP
    + 'source=device.go:262 msg="compute graph" device=CUDA0 size="121.5 MiB"\n'
    + _STAMP
    + 'source=device.go:272 msg="total memory" size="24.3 GiB"\n'
)
_STARTED = _STAMP + 'source=server.go:1388 msg="llama runner started in 136.09 seconds"\n'


def test_buffers_of_the_layout_that_stayed() -> None:
    """The last line of each device counts, the host's only where there is no other."""
    boot = read_boot_log(LOADED + _STARTED)

    assert (boot.engine, boot.is_ready, boot.error) == ("llama.cpp", True, None)
    assert boot.weight_bytes == 23 * GIB
    assert (boot.pool_bytes, boot.activation_bytes) == (450 * MIB, round(121.5 * MIB))
    assert (boot.free_bytes, boot.num_devices) == (44 * GIB, 2)


def test_a_boot_on_the_host() -> None:
    """Without a GPU the host's buffers are the model's; older spellings name the same."""
    boot = read_boot_log(
        _STAMP
        + 'source=ggml.go:365 msg="model weights" buffer=CPU size="10.0 GiB"\n'
        + _STAMP
        + 'source=ggml.go:672 msg="compute graph" backend=CPU buffer_type=CPU size="0 B"\n'
    )

    assert (boot.engine, boot.weight_bytes) == ("llama.cpp", 10 * GIB)
    assert boot.free_bytes is None


def test_a_layout_that_was_tried_again_stopped_nothing() -> None:
    """One that fits nowhere did."""
    failed = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 590.07 MiB on device 0: cudaMalloc failed: out of memory\n"
    again = (
        _STAMP
        + 'source=server.go:955 msg="model layout did not fit, applying backoff" backoff=0.10\n'
    )
    nowhere = _STAMP + 'source=sched.go:457 msg="error" error="memory layout cannot be allocated"\n'

    assert read_boot_log(failed + again).error is None
    error = read_boot_log(failed + again + nowhere).error
    assert error is not None
    assert error.kind == "out of memory"
