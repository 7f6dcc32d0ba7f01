"""Dense layers of one client in machine code: products so small that libraries lose most of their speed.

A local step of logistic regression multiplies 10 x 784 by 784 x 16, of which a library makes less than it
could, and gathering, normalising and adding are passes of their own (`fedmpi bench`). Here all
local steps of some clients are one call, on memory that a cache holds. Importing this module compiles
nothing; the first call does, and the result is kept on disk.

Invariant: an update depends on the client's own samples and parameters alone. Sums are reordered only as
the compiler does for this processor; infinities and nan are kept, so that divergence is seen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit

_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}


def _compiled(function: Callable) -> Callable:
    """Compiled at its first call, and kept on disk where a folder for that can be written."""
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # a container without any
        return njit(**_OPTIONS)(function)


_ZERO = np.float32(0)
SAMPLES = 16  # of an evaluation at a time


@_compiled
def products(weights, inputs, out):  # noqa: ANN001, ANN201
    """out[b, c] = sum_d weights[c, d] inputs[b, d], four by four: 16 sums in registers."""
    num_outputs, length, batch = weights.shape[0], weights.shape[1], inputs.shape[0]
    whole = batch - batch % 4
    for c in range(0, num_outputs - num_outputs % 4, 4):
        w0, w1, w2, w3 = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
        for b in range(0, whole, 4):
            x0, x1, x2, x3 = inputs[b], inputs[b + 1], inputs[b + 2], inputs[b + 3]
            a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = _ZERO
            a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = _ZERO
            for d in range(length):
                p0, p1, p2, p3 = w0[d], w1[d], w2[d], w3[d]
                q0, q1, q2, q3 = x0[d], x1[d], x2[d], x3[d]
                a00 += p0 * q0
                a01 += p0 * q1
                a02 += p0 * q2
                a03 += p0 * q3
                a10 += p1 * q0
                a11 += p1 * q1
                a12 += p1 * q2
                a13 += p1 * q3
                a20 += p2 * q0
                a21 += p2 * q1
                a22 += p2 * q2
                a23 += p2 * q3
                a30 += p3 * q0
                a31 += p3 * q1
                a32 += p3 * q2
                a33 += p3 * q3
            out[b, c], out[b + 1, c], out[b + 2, c], out[b + 3, c] = a00, a01, a02, a03
            out[b, c + 1], out[b + 1, c + 1], out[b + 2, c + 1], out[b + 3, c + 1] = a10, a11, a12, a13
            out[b, c + 2], out[b + 1, c + 2], out[b + 2, c + 2], out[b + 3, c + 2] = a20, a21, a22, a23
            out[b, c + 3], out[b + 1, c + 3], out[b + 2, c + 3], out[b + 3, c + 3] = a30, a31, a32, a33

    # The outputs that are left over, two by four and one by four.
    c = num_outputs - num_outputs % 4
    if num_outputs - c >= 2:
        w0, w1 = weights[c], weights[c + 1]
        for b in range(0, whole, 4):
            x0, x1, x2, x3 = inputs[b], inputs[b + 1], inputs[b + 2], inputs[b + 3]
            a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = _ZERO
            for d in range(length):
                p0, p1 = w0[d], w1[d]
                q0, q1, q2, q3 = x0[d], x1[d], x2[d], x3[d]
                a00 += p0 * q0
                a01 += p0 * q1
                a02 += p0 * q2
                a03 += p0 * q3
                a10 += p1 * q0
                a11 += p1 * q1
                a12 += p1 * q2
                a13 += p1 * q3
            out[b, c], out[b + 1, c], out[b + 2, c], out[b + 3, c] = a00, a01, a02, a03
            out[b, c + 1], out[b + 1, c + 1], out[b + 2, c + 1], out[b + 3, c + 1] = a10, a11, a12, a13
        c += 2
    if c < num_outputs:
        w0 = weights[c]
        for b in range(0, whole, 4):
            x0, x1, x2, x3 = inputs[b], inputs[b + 1], inputs[b + 2], inputs[b + 3]
            a00 = a01 = a02 = a03 = _ZERO
            for d in range(length):
                p0 = w0[d]
                a00 += p0 * x0[d]
                a01 += p0 * x1[d]
                a02 += p0 * x2[d]
                a03 += p0 * x3[d]
            out[b, c], out[b + 1, c], out[b + 2, c], out[b + 3, c] = a00, a01, a02, a03

    # The samples that are left over.
    for b in range(whole, batch):
        x0 = inputs[b]
        for c in range(num_outputs):
            w0 = weights[c]
            a00 = _ZERO
            for d in range(length):
                a00 += w0[d] * x0[d]
            out[b, c] = a00


@_compiled
def add_products(target, slope, inputs):  # noqa: ANN001, ANN201
    """target[c, d] += sum_b slope[b, c] inputs[b, d], eight samples at a time, then four, then one."""
    batch, length = inputs.shape
    b = 0
    while b + 8 <= batch:
        x0, x1, x2, x3 = inputs[b], inputs[b + 1], inputs[b + 2], inputs[b + 3]
        x4, x5, x6, x7 = inputs[b + 4], inputs[b + 5], inputs[b + 6], inputs[b + 7]
        for c in range(len(target)):
            row = target[c]
            s0, s1, s2, s3 = slope[b, c], slope[b + 1, c], slope[b + 2, c], slope[b + 3, c]
            s4, s5, s6, s7 = slope[b + 4, c], slope[b + 5, c], slope[b + 6, c], slope[b + 7, c]
            for d in range(length):
                low = s0 * x0[d] + s1 * x1[d] + s2 * x2[d] + s3 * x3[d]
                high = s4 * x4[d] + s5 * x5[d] + s6 * x6[d] + s7 * x7[d]
                row[d] += low + high
        b += 8
    while b + 4 <= batch:
        x0, x1, x2, x3 = inputs[b], inputs[b + 1], inputs[b + 2], inputs[b + 3]
        for c in range(len(target)):
            row = target[c]
            s0, s1, s2, s3 = slope[b, c], slope[b + 1, c], slope[b + 2, c], slope[b + 3, c]
            for d in range(length):
                row[d] += s0 * x0[d] + s1 * x1[d] + s2 * x2[d] + s3 * x3[d]
        b += 4
    while b < batch:
        x0 = inputs[b]
        for c in range(len(target)):
            row, s0 = target[c], slope[b, c]
            for d in range(length):
                row[d] += s0 * x0[d]
        b += 1


@_compiled
def _slopes(logits, labels, scale):  # noqa: ANN001, ANN202
    """In place: scale times the slope of the sum of cross-entropies, softmax - onehot."""
    for b in range(logits.shape[0]):
        row = logits[b]
        most = row[0]
        for c in range(1, len(row)):
            if row[c] > most:
                most = row[c]
        total = _ZERO
        for c in range(len(row)):
            row[c] = np.exp(row[c] - most)
            total += row[c]
        for c in range(len(row)):
            row[c] = row[c] / total * scale
        row[labels[b]] -= scale


@_compiled
def _before_relu(weights, slope, outputs, before):  # noqa: ANN001, ANN202
    """before[b, h] = sum_c slope[b, c] weights[c, h] where the output was positive (or nan), else 0."""
    for b in range(slope.shape[0]):
        row, out = before[b], outputs[b]
        row[:] = _ZERO
        for c in range(slope.shape[1]):
            w0, s0 = weights[c], slope[b, c]
            for h in range(len(row)):
                row[h] += s0 * w0[h]
        for h in range(len(row)):
            if out[h] <= 0:
                row[h] = _ZERO


@_compiled
def add_gradient(params, target, widths, values, slopes, labels, scale):  # noqa: ANN001, ANN201
    """target += scale * gradient of the sum of losses at `params`.

    `values`: room for the outputs of all layers, the samples first; `slopes`: for the slopes of two layers.
    """
    # Forward: outputs of a layer follow those of the layer before; ReLU but for the last.
    batch, num_layers = len(labels), len(widths) - 1
    for b in range(batch):  # here no array checks its bounds
        if not 0 <= labels[b] < widths[num_layers]:
            raise IndexError("a label is not among the model's outputs")
    at = place = 0
    for k in range(num_layers):
        before, width = widths[k], widths[k + 1]
        inputs = values[place : place + batch * before].reshape(batch, before)
        place += batch * before
        out = values[place : place + batch * width].reshape(batch, width)
        products(params[at : at + width * before].reshape(width, before), inputs, out)
        at += width * before
        bias = params[at : at + width]
        at += width
        for b in range(batch):
            for c in range(width):
                value = out[b, c] + bias[c]
                out[b, c] = _ZERO if k < num_layers - 1 and value <= 0 else value

    # Backward, from the last layer to the first.
    slope = values[place : place + batch * widths[num_layers]].reshape(batch, widths[num_layers])
    _slopes(slope, labels, scale)
    for k in range(num_layers - 1, -1, -1):
        before, width = widths[k], widths[k + 1]
        at -= width
        bias = target[at : at + width]
        for b in range(batch):
            for c in range(width):
                bias[c] += slope[b, c]
        at -= width * before
        place -= batch * before
        inputs = values[place : place + batch * before].reshape(batch, before)
        add_products(target[at : at + width * before].reshape(width, before), slope, inputs)
        if k:
            begin = (k % 2) * (len(slopes) // 2)
            below = slopes[begin : begin + batch * before].reshape(batch, before)
            _before_relu(params[at : at + width * before].reshape(width, before), slope, inputs, below)
            slope = below


@_compiled
def normalise(raw, rows, scale, shift, out):  # noqa: ANN001, ANN201
    """out[i] = raw[rows[i]] * scale + shift."""
    for i in range(len(rows)):
        sample, values = raw[rows[i]], out[i]
        for d in range(len(values)):
            values[d] = np.float32(sample[d]) * scale[d] + shift[d]


@_compiled
def train(starts, updates, widths, raw, labels, rows, batch, steps, scale, shift, step_size, room):  # noqa: ANN001, ANN201
    """All local steps of some clients: update -= gamma * gradient of the mean loss at start + update.

    `starts`: a row for each client, or one for all; `rows`: for each client the samples of all steps, or of
    one step if it is the same at all; `step_size`: -gamma / batch.
    """
    # Room for y and the update, for the samples and outputs of all layers, and for two slopes.
    num_params, length, outputs = starts.shape[1], widths[0], 0
    if raw.shape[1] != length:
        raise ValueError("samples do not have as many numbers as the model takes")
    for k in range(len(widths)):
        outputs += batch * widths[k]
    params, update = room[:num_params], room[num_params : 2 * num_params]
    values = room[2 * num_params : 2 * num_params + outputs]
    slopes = room[2 * num_params + outputs :]
    own_labels = np.empty(batch, np.int64)

    # Client by client, step by step.
    for n in range(len(updates)):
        start = starts[n if len(starts) > 1 else 0]
        update[:] = _ZERO
        for step in range(steps):
            own = rows[n, step * batch : (step + 1) * batch] if rows.shape[1] > batch else rows[n]
            for i in range(batch):
                own_labels[i] = labels[own[i]]
            normalise(raw, own, scale, shift, values[: batch * length].reshape(batch, length))
            for i in range(num_params):
                params[i] = start[i] + update[i]
            add_gradient(params, update, widths, values, slopes, own_labels, step_size)
        for i in range(num_params):
            updates[n, i] = update[i]


@_compiled
def outputs_of(models, widths, raw, scale, shift, room, out):  # noqa: ANN001, ANN201
    """out[m, c, i]: output c of model m for sample i; samples are normalised once for all models."""
    most, widest = SAMPLES, 0
    for k in range(1, len(widths)):
        widest = max(widest, widths[k])
    length = widths[0]
    order = np.arange(most)
    for first in range(0, len(raw), most):
        count = min(most, len(raw) - first)
        inputs = room[: count * length].reshape(count, length)
        normalise(raw[first : first + count], order[:count], scale, shift, inputs)
        for m in range(len(models)):
            # Layer by layer, between two places.
            params, values, at = models[m], inputs, 0
            for k in range(len(widths) - 1):
                before, width = widths[k], widths[k + 1]
                place = most * length + (k % 2) * most * widest
                found = room[place : place + count * width].reshape(count, width)
                products(params[at : at + width * before].reshape(width, before), values, found)
                at += width * before
                for i in range(count):
                    for c in range(width):
                        value = found[i, c] + params[at + c]
                        found[i, c] = _ZERO if k < len(widths) - 2 and value <= 0 else value
                at += width
                values = found
            for c in range(widths[-1]):
                for i in range(count):
                    out[m, c, first + i] = values[i, c]
