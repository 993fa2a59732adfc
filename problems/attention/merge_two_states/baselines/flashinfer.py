"""FlashInfer's merge of two states of attention, whose logarithms have base 2."""

import math

import flashinfer


def run(prefix_output, prefix_log_sum, own_output, own_log_sum):
    per_bit = math.log(2.0)
    output, log_sum = flashinfer.merge_state(prefix_output, prefix_log_sum / per_bit, own_output, own_log_sum / per_bit)
    return output, log_sum * per_bit
