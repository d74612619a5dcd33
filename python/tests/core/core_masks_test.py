"""BlockMask: presets, conversions, and what they keep."""

from __future__ import annotations

import os
import pickle
import sys

import numpy as np
import pytest

import tessera
from tessera import BlockMask
from tessera._core import Options


def kept(mask: BlockMask, head: int = 0) -> np.ndarray:
    return np.array([[c == "#" for c in line] for line in mask.draw(head).split()])


def distance(rows: int, columns: int) -> np.ndarray:
    return np.arange(rows)[:, None] - np.arange(columns)[None, :]


def test_presets_by_their_definitions():
    sizes = dict(block_q=16, block_k=16)
    d = distance(8, 8)
    np.testing.assert_array_equal(kept(BlockMask.local(128, 128, 1, **sizes)), abs(d) <= 1)
    np.testing.assert_array_equal(kept(BlockMask.strided(128, 128, 3, **sizes)), (abs(d) < 3) | (d % 3 == 0))
    i, j = np.indices((8, 8))
    np.testing.assert_array_equal(kept(BlockMask.fixed(128, 128, 4, 1, **sizes)), (i // 4 == j // 4) | (j % 4 == 3))
    one_bit = [[bin(a ^ b).count("1") <= 1 for b in range(8)] for a in range(8)]
    np.testing.assert_array_equal(kept(BlockMask.butterfly(128, 128, **sizes)), one_bit)
    bird = kept(BlockMask.big_bird(128, 128, 1, 1, 2, seed=3, **sizes))
    fixed = (abs(d) <= 1) | (i == 0) | (j == 0)
    assert (bird >= fixed).all() and ((bird & ~fixed).sum(axis=1)[1:] <= 2).all() and (bird & ~fixed).any()
    random = BlockMask.random(1024, 1024, 0.25, seed=1, heads=2, **sizes)
    assert random.density == pytest.approx(0.25) and random.draw(0) != random.draw(1)
    assert random.draw(0) == BlockMask.random(1024, 1024, 0.25, seed=1, heads=2, **sizes).draw(0)


def test_facts_of_a_mask():
    mask = BlockMask.local(100, 200, 0, block_q=32, block_k=64)
    facts = (mask.q_length, mask.k_length, mask.block_q, mask.block_k, mask.heads, mask.q_blocks, mask.k_blocks)
    assert facts == (100, 200, 32, 64, 1, 4, 4)
    assert mask.kept == kept(mask).sum() and mask.density == mask.kept / 16
    assert mask.row(1) == list(np.flatnonzero(kept(mask)[1]))
    assert mask.column(2) == list(np.flatnonzero(kept(mask)[:, 2]))
    assert repr(mask) == f"<BlockMask 100 x 200 in blocks of 32 x 64, {mask.kept} of 16 kept>"


def test_conversions_agree():
    flags = np.random.default_rng(0).random((2, 4, 3)) < 0.5
    blocks = BlockMask.from_blocks(flags, q_length=60, k_length=90, block_q=16, block_k=32)
    dense = BlockMask.from_dense(np.repeat(np.repeat(flags, 16, 1), 32, 2)[:, :60, :90], block_q=16, block_k=32)
    offsets = np.concatenate([[0], flags.reshape(8, 3).sum(axis=1).cumsum()])
    columns = np.concatenate([np.flatnonzero(row) for row in flags.reshape(8, 3)])
    csr = BlockMask.from_csr(60, 90, offsets, columns, block_q=16, block_k=32, heads=2)
    lists = BlockMask.from_csr(60, 90, offsets.tolist(), columns.tolist(), block_q=16, block_k=32, heads=2)
    for head in range(2):
        for mask in (blocks, dense, csr, lists):
            np.testing.assert_array_equal(kept(mask, head), flags[head])
    transposed = BlockMask.from_blocks(flags[0].T, block_q=16, block_k=16)  # strided
    np.testing.assert_array_equal(kept(transposed), flags[0].T)


def test_wrong_masks():
    with pytest.raises(ValueError, match="radius"):
        BlockMask.local(64, 64, -1)
    with pytest.raises(ValueError, match="q_length is 100; with blocks of 16 it must have 4 blocks"):
        BlockMask.from_blocks(np.ones((4, 4), bool), q_length=100, block_q=16)
    with pytest.raises(ValueError, match="kept.dtype is float64; it must be bool or uint8"):
        BlockMask.from_blocks(np.ones((4, 4)))
    with pytest.raises(ValueError, match="visible.ndim is 1"):
        BlockMask.from_dense(np.ones(4, bool))
    with pytest.raises(ValueError, match="visible as a whole"):
        BlockMask.from_dense(np.eye(64, dtype=bool), block_q=16, block_k=16)
    with pytest.raises(ValueError):
        BlockMask.from_csr(64, 64, [0, 1], [5], block_q=64, block_k=64)


@pytest.mark.parametrize("arguments, text", [
    (("a", 64, 1), "q_length is 'a'; it must be an integer"), ((64, 64, 1.5), "radius is 1.5; it must be an integer"),
    ((64, 64, None), "radius is None; it must be an integer"), ((64, 2**63, 1), "k_length is 9223372036854775808"),
])
def test_arguments_of_presets(arguments, text):
    with pytest.raises(ValueError, match=text):
        BlockMask.local(*arguments)


def test_arguments_of_masks():
    flags = np.ones((4, 4), bool)
    with pytest.raises(ValueError, match="density is 'a'; it must be a number"):
        BlockMask.random(64, 64, "a")
    with pytest.raises(ValueError, match="seed is -1; it must be from 0 to 2.64 - 1"):
        BlockMask.random(64, 64, 0.5, -1)
    with pytest.raises(ValueError, match="block_q is None; it must be an integer"):
        BlockMask.from_blocks(flags, block_q=None)
    with pytest.raises(ValueError, match="q_length is omitted, and 4 blocks of 4611686018427387904 make more than"):
        BlockMask.from_blocks(flags, block_q=2**62, block_k=1)
    with pytest.raises(ValueError, match="columns is 'a'; it must be a sequence of integers"):
        BlockMask.from_csr(64, 64, [0, 1], "a", block_q=64, block_k=64)
    with pytest.raises(ValueError, match=r"columns\[0\] is 4294967296; it must fit 32 bits"):
        BlockMask.from_csr(64, 64, [0, 1], [2**32], block_q=64, block_k=64)
    with pytest.raises(ValueError, match=r"row_offsets\[1\] is 0.5; it must be an integer"):
        BlockMask.from_csr(64, 64, [0, 0.5], [0], block_q=64, block_k=64)
    with pytest.raises(ValueError, match="head is 'a'; it must be an integer"):
        BlockMask.local(64, 64, 1).draw("a")
    for call, name in ((BlockMask.local(64, 64, 1).prepare, "gpu"), (BlockMask.local(64, 64, 1).row, "q_block"),
                       (BlockMask.local(64, 64, 1).column, "k_block"), (BlockMask.butterfly, "q_length")):
        with pytest.raises(ValueError, match=f"{name} is 'a'; it must be an integer"):
            call("a", *([64] if name == "q_length" else []))
    with pytest.raises(ValueError, match="gpu is 2147483648; it must fit 32 bits"):
        BlockMask.local(64, 64, 1).prepare(2**31)
    with pytest.raises(ValueError, match="gpu is None; it must be an integer"):
        BlockMask.local(64, 64, 1).prepare(gpu=None)
    with pytest.raises(ValueError, match="q_block is 9; it must be in"):
        BlockMask.local(64, 64, 1).row(9)


def test_a_mask_that_no_memory_holds():
    with pytest.raises(ValueError, match="density is 0.5, which keeps 140737488355328 of 281474976710656 blocks"):
        BlockMask.random(2**31, 2**31, 0.5)
    with pytest.raises(MemoryError, match="no memory for a mask .* at least 6292 GiB, and this machine has"):
        BlockMask.random(2**31, 2**31, 0.003)


def test_calls_keep_no_mask():
    """The description of a call is kept for the next one, but not a mask, which may be of any size."""
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc")
    q = np.zeros((1, 2000, 1, 1), np.float32)

    def call():
        mask = BlockMask.local(2000, 2000, 2000, block_q=1, block_k=1)  # 32 MB
        before = sys.getrefcount(mask)
        tessera.attention(q, q, q, block_mask=mask, threads=1)
        assert sys.getrefcount(mask) == before

    call()
    before = resident()
    for _ in range(4):
        call()
    assert resident() - before < 64e6


def test_masks_and_options_travel():
    mask = BlockMask.random(256, 256, 0.5, seed=2, heads=2, block_q=32, block_k=32)
    again = pickle.loads(pickle.dumps(mask))
    assert repr(again) == repr(mask) and [again.draw(h) for h in range(2)] == [mask.draw(h) for h in range(2)]
    options = Options(scale=0.5, left=3, right=0, align="top_left", diagonal=-2, softcap=2.0, dropout=0.1,
                      origin=(1, 2, 3, 4), algorithm="flash1", deterministic=True)
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(pickle.dumps(Options(block_mask=mask))).block_mask.draw() == mask.draw()


def test_options_are_values():
    mask = BlockMask.local(64, 64, 1)
    assert Options(block_mask=mask) == Options(block_mask=mask) and Options(block_mask=mask).block_mask == mask
    assert Options(right=0) == Options(right=0) != Options(right=1)
    assert Options() != 3 and mask != 3
    assert len({Options(scale=1.0), Options(scale=1.0), Options(scale=2.0), Options()}) == 3
    assert repr(Options(right=0, dropout=0.5)) == "Options(right=0, dropout=0.5)"
    with pytest.raises(AttributeError):
        Options().left = 3
    assert Options(scale=2.0).with_blocks(mask) == Options(scale=2.0, block_mask=mask)
    assert Options(block_mask=mask).with_blocks(None) == Options()
    with pytest.raises(ValueError, match="block_mask is 3; it must be a BlockMask or None"):
        Options().with_blocks(3)
