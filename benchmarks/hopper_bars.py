"""What `peers_gpu.py --algorithm flash3` must reach, as tables."""

from gpu_bars import LENGTHS
from judging import Bar

SECTIONS = {
    "cells": "against cuDNN: single launches in turn, and each alone, launch after launch",
    "types": "fp16 against bf16",
    "heads": "grouped heads (32:8) and one key/value head against as many as queries",
    "window": "1024 keys of 16384 against what its work suggests",
    "varlen": "packed sequences of mixed lengths against the dense rate",
    "dims": "head_dims 72 to 120 against 128",
    "backward": "gradients against cuDNN and cuda.flash2, single launches in turn",
    "speculation": "inputs that raise the maximum in every block of keys against the lazy form",
}
PROTOCOLS = ("interleaved", "alone")
SOME_LENGTHS = (1024, 8192)
BACKWARD_DIMS = (64, 128)

# TFLOP/s of FlashAttention-3 and cuDNN 9.19 in one process on an H200, by (head_dim, causal), for
# LENGTHS.
FLASH_ATTENTION_3 = {
    "alone": {
        (64, False): ((330, 368, 462, 483, 519, 521), (385, 420, 444, 448, 458, 459)),
        (64, True): ((224, 293, 396, 448, 500, 511), (261, 334, 379, 412, 433, 438)),
        (128, False): ((507, 581, 628, 650, 671, 684), (501, 557, 595, 608, 609, 610)),
        (128, True): ((318, 459, 548, 595, 630, 643), (333, 417, 478, 521, 546, 566)),
        (256, False): ((512, 623, 671, 686, 710, 726), (508, 580, 629, 653, 658, 663)),
        (256, True): ((335, 468, 561, 623, 670, 695), (339, 442, 518, 556, 586, 603)),
    },
    "interleaved": {
        (64, False): ((315, 380, 470, 491, 540, 546), (368, 429, 433, 442, 450, 453)),
        (64, True): ((211, 303, 418, 452, 505, 528), (244, 339, 389, 402, 420, 432)),
        (128, False): ((506, 622, 663, 654, 681, 680), (504, 594, 614, 597, 611, 609)),
        (128, True): ((305, 482, 599, 662, 679, 674), (309, 430, 502, 521, 523, 515)),
        (256, False): ((500, 661, 723, 716, 744, 747), (484, 614, 652, 638, 654, 652)),
        (256, True): ((318, 490, 619, 687, 743, 738), (318, 454, 536, 540, 562, 548)),
    },
}


def flash_attention_3(protocol, dim, causal, length):
    """Its speed as a share of cuDNN's."""
    ours, theirs = FLASH_ATTENTION_3[protocol][dim, causal]
    index = LENGTHS.index(length)
    return ours[index] / theirs[index]


def of_cudnn(protocol, mean):
    where = {"section": "cells", "protocol": protocol}
    return [
        Bar(f"{protocol}, x cuDNN, geometric mean", "ratio", mean, where=where, mean=True),
        Bar(f"{protocol}, x cuDNN, every cell", "ratio", 1.03, where=where),
        # Differences of 3 % in one cell are noise.
        Bar(f"{protocol}, x FlashAttention-3's ratio to cuDNN, every cell", "of_flash_attention_3", 0.97, where=where),
    ]


BARS = [
    Bar("result, difference as a share of what is allowed", "error_share", most=1),
    *of_cudnn("alone", 1.22),
    *of_cudnn("interleaved", 1.30),
    Bar("error against fp64 / that of cuDNN, random data", "error_ratio", most=1.1),
    Bar("rows that see one key, values of others in them", "one_key_differences", most=0),
    Bar("calls that another kernel served", "elsewhere", most=0),
    Bar("fp16, x bf16", "of_bf16", 0.98),
    Bar("grouped heads, x as many key/value heads", "of_many_heads", 0.97),
    Bar("window of 1024 / what its work suggests, time", "of_work", most=1.15),
    Bar("packed, x the dense rate", "of_dense", 0.9),
    Bar("head_dim 72 to 120 / 128, time", "of_128", most=1.02),
    Bar("backward, x cuDNN, geometric mean", "ratio", 1.0, where={"section": "backward"}, mean=True),
    Bar("backward, x cuda.flash2, every cell", "of_flash2", 1.0),
    Bar("worst inputs for speculation, x the lazy form", "of_lazy", 0.85),
]
