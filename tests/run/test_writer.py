"""Chunks of a snapshot are written while others are computed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from pmwd_dist.run.outputs.writer import Writer


@pytest.mark.parametrize("buffer", [0, 10**9])
def test_few_chunks_wait_to_be_written(tmp_path: Path, buffer: int):
    made, most, go = [0], [0], threading.Event()

    class Many:
        chunk_size = 10**6

        def path(self, path):
            return path

        def chunks(self):
            for _ in range(100):
                made[0] += 1
                yield made[0]

        def write(self, path, chunks):
            for number in chunks:
                most[0] = max(most[0], made[0] - number)
                go.wait(0.001 if buffer == 0 else 100)
            path.touch()

    with Writer(buffer) as writer:
        assert writer.write(Many(), tmp_path / "s.hdf5") == "s.hdf5"
        assert not (tmp_path / "s.hdf5").exists()
        ended: list[bool] = []
        writer.pending = 1, None, lambda: ended.append(True)
        assert buffer == 0 or not writer.finished()
        go.set()
        writer.finish()
        assert ended == [True] and writer.pending is None
    assert [path.name for path in tmp_path.iterdir()] == ["s.hdf5"]
    assert most[0] <= 4 if buffer == 0 else most[0] > 90


def test_a_second_signal_does_not_wait_for_the_disk(tmp_path: Path):
    go, ended = threading.Event(), threading.Event()

    class Slow:
        chunk_size = 1

        def path(self, path):
            return path

        def chunks(self):
            return iter(())

        def write(self, path, chunks):
            go.wait(2)
            ended.set()

    writer = Writer(0)
    writer.write(Slow(), tmp_path / "s.hdf5")
    with pytest.raises(KeyboardInterrupt), writer:
        raise KeyboardInterrupt
    assert not ended.is_set()
    go.set()
    assert ended.wait(10)


@pytest.mark.parametrize("count", [3, 10])
def test_a_second_signal_does_not_wait_for_chunks(tmp_path: Path, count: int):
    """With 3 chunks all wait already; of 10 the next one waits for room."""
    begun, go, ended, written = threading.Event(), threading.Event(), threading.Event(), list[int]()

    class Slow:
        chunk_size = 1

        def path(self, path):
            return path

        def chunks(self):
            return iter(range(count))

        def write(self, path, chunks):
            for number in chunks:
                written.append(number)
                begun.set()
                go.wait(20)
            path.touch()
            ended.set()

    def send():
        begun.wait(10)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    def run():
        with Writer(0) as writer:
            writer.write(Slow(), tmp_path / "s.hdf5")
            time.sleep(20)

    sender = threading.Thread(target=send)
    sender.start()
    began = time.perf_counter()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where tests run in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.perf_counter() - began < 10
    go.set()
    assert ended.wait(10) and written == [0]
    sender.join()
