"""The loops that `mpvae.compiled` compiles: plain functions, never called from Python.

They are written without helper functions, because those would have to be decorated, and numba
imported, beforehand.
"""

import math

import numpy as np

# Polynomials of least largest relative error, found by reweighted least squares (function
# `minimax` in tests/test_kernel.py derives them again); the error without rounding stands
# beside each. Coefficient k belongs to the k-th power.
_EXP2 = tuple(  # 2^f for |f| <= 1/2: 7.5e-8
    np.float32(c)
    for c in (
        1.000000072,
        0.6931469671,
        0.2402211972,
        0.05550713275,
        0.009675541331,
        0.001327647152,
    )
)
_EXP = tuple(  # e^p for 0 <= p <= 1: 2.5e-8
    np.float32(c)
    for c in (
        *(1.000000024, 0.9999973617, 0.5000457831, 0.1663759807),
        *(0.04252587391, 0.007064674873, 0.002272064673),
    )
)
_SLOPE = np.float32(0.45)
_ERFCX = tuple(  # erfcx(a) / (2 q) in q = 1 / (1 + 0.45 a), any a >= 0: 3.3e-8
    np.float32(c)
    for c in (
        *(0.1269426604, 0.1269415815, 0.1141358194, 0.08762608106, 0.05997511907),
        *(-0.01117866728, 0.07119993472, -0.1502906664, 0.09534362541, -0.02069548085),
    )
)
_LOG2 = tuple(  # log2(1 + z) / z for 1 + z from sqrt(1/2) to sqrt(2): 1.7e-7
    np.float32(c)
    for c in (
        *(1.442694962, -0.7213527881, 0.480923242, -0.3602396387),
        *(0.2870987098, -0.248876889, 0.2340422964, -0.1458115153),
    )
)
_SIN = tuple(  # sin(a pi / 4) / a in a^2, |a| <= 1: 3.3e-9
    np.float32(c) for c in (0.7853981609, -0.08074543253, 0.002490001024, -3.595045224e-05)
)
_COS = tuple(  # cos(a pi / 4) in a^2, |a| <= 1: 3.3e-8
    np.float32(c) for c in (0.9999999674, -0.3084241656, 0.01584968417, -0.0003187278402)
)

# numba computes in float32 only where every constant is one.
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_LOG2_E, _LN_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
_LEAST = np.float32(-125)  # 2^-125 is still a normal number
_TO_INTEGER = np.float32(1.5 * 2**23)  # adding it rounds to an integer, in the low bits
_MANTISSA = np.int32(23)  # bits
_SQRT_HALF_BITS = np.int32(0x3F3504F3)

_LANES = 32  # generators side by side
BLOCK = 4096  # normal numbers from one seeding
_TILE = 64  # rows at a time that distances are measured from


def rows_loop(  # type: ignore[no-untyped-def]
    start,
    stop,
    v_mean,
    v_draw,
    t,
    row_weight,
    ce,
    gain,
    rank,
    floor,
    entropy,
    antithetic,
    share,
    terms,
    dv_mean,
    dv_draw,
):
    """Terms and gradient of the rows that share draws start to stop.

    See `mpvae.kernel.rows_value_and_gradient`.
    A floor or a weight of ranking or entropy that is None, not a number, is left out of the
    machine code: numba decides ``is None`` from the type of an argument.
    """
    n, R, L = v_mean.shape
    H = v_draw.shape[1]
    S = 2 * H if antithetic else H
    W = (S + 7) // 8 * 8  # whole vectors; the lanes beyond S get weight zero
    w = np.zeros((L, W), np.float32)  # the draws, transposed
    hazard = np.empty((L, W), np.float32)
    dw = np.empty((L, W), np.float32)
    mantissa = np.empty(W, np.float32)  # prod_l h or Phi, as mantissa 2^exponent
    exponent = np.empty(W, np.float32)
    square = np.empty(W, np.float32)  # what the product lacks: sum of v^2 over v > 0
    log2_p = np.empty(W, np.float32)
    by_draw = np.zeros(W, np.float32)
    slope = np.empty(W, np.float32)
    scale = 1 / math.sqrt(math.pi)
    if floor is not None:
        kept = _ONE - (floor + floor)
        scale *= kept
    if rank is not None:
        ranked = np.empty((L, W), np.float32)  # exp(-v^2) e^{-g Phi}
        sums = np.empty((2, W), np.float32)  # of e^{-g Phi} over absent, present
        by_side = np.zeros((2, W), np.float32)
    if entropy is not None:
        prob = np.empty((L, W), np.float32)  # Phi(s)
        tilted = np.empty((L, W), np.float32)  # exp(-v^2) e^{Phi(s)}
        normaliser = np.empty(W, np.float32)  # sum_l e^{Phi(s)}
        mean_prob = np.zeros(W, np.float32)  # of Phi(s), by its softmax
        by_label = np.zeros(W, np.float32)
    to_exponent = -gain * _LOG2_E

    for i in range(start * share, min(n, stop * share)):
        g = i // share
        if i == g * share:  # the first row of those that share draws
            for h in range(H):
                for k in range(L):
                    w[k, h] = v_draw[g, h, k]
            if antithetic:
                for k in range(L):
                    for h in range(H):
                        w[k, H + h] = -w[k, h]
            dw[:] = _ZERO
        n_present, n_absent = 0, 0
        for k in range(L):
            if t[i, k] > _ZERO:
                n_present += 1
            elif t[i, k] < _ZERO:
                n_absent += 1
        per_pair = 0.0
        if rank is not None and n_present * n_absent > 0:
            per_pair = math.exp(gain) / (gain * n_present * n_absent)

        for r in range(R):
            mantissa[:] = _ONE
            exponent[:] = _ZERO
            square[:] = _ZERO
            if rank is not None:
                sums[:] = _ZERO
            if entropy is not None:
                normaliser[:] = _ZERO
                mean_prob[:] = _ZERO
            seen = 0
            for k in range(L):
                if t[i, k] == _ZERO:
                    continue
                mean, sign = v_mean[i, r, k], t[i, k]
                w_k, hazard_k = w[k], hazard[k]
                if rank is not None:
                    ranked_k, sums_k = ranked[k], sums[1 if sign > _ZERO else 0]
                if entropy is not None:
                    prob_k, tilted_k = prob[k], tilted[k]
                    offset = _ZERO if sign > _ZERO else _ONE
                for s in range(W):
                    v = mean + sign * w_k[s]
                    v2 = v * v
                    x = max(-_LOG2_E * v2, _LEAST)  # >>> d = exp(-v^2) = 2^x
                    j = np.float32(x + _TO_INTEGER)
                    f = x - (j - _TO_INTEGER)
                    f2 = f * f
                    a = (_EXP2[0] + _EXP2[1] * f) + f2 * (
                        (_EXP2[2] + _EXP2[3] * f) + f2 * (_EXP2[4] + _EXP2[5] * f)
                    )
                    bits = np.int32(j.view(np.int32) << _MANTISSA)
                    d = np.int32(bits + np.float32(a).view(np.int32)).view(np.float32)  # <<<
                    q = _ONE / (_ONE + _SLOPE * abs(v))  # >>> erfcx(|v|) / 2
                    q2 = q * q
                    q4 = q2 * q2
                    a = (_ERFCX[0] + _ERFCX[1] * q) + q2 * (_ERFCX[2] + _ERFCX[3] * q)
                    b = (_ERFCX[4] + _ERFCX[5] * q) + q2 * (_ERFCX[6] + _ERFCX[7] * q)
                    half_erfcx = q * (a + q4 * (b + q4 * (_ERFCX[8] + _ERFCX[9] * q)))  # <<<
                    small = d * half_erfcx
                    large = _ONE - small
                    in_tail = v > _ZERO
                    Phi = small if in_tail else large
                    if floor is not None:
                        Phi = floor + kept * Phi
                        in_tail = False  # no need to go without d: Phi does not underflow
                    factor = half_erfcx if in_tail else Phi
                    hazard_k[s] = (_ONE if in_tail else d) / factor
                    mantissa[s] *= factor
                    square[s] += v2 if in_tail else _ZERO
                    if rank is not None:
                        x = to_exponent * Phi  # >>> e = e^{-g Phi}
                        j = np.float32(x + _TO_INTEGER)
                        f = x - (j - _TO_INTEGER)
                        f2 = f * f
                        a = (_EXP2[0] + _EXP2[1] * f) + f2 * (
                            (_EXP2[2] + _EXP2[3] * f) + f2 * (_EXP2[4] + _EXP2[5] * f)
                        )
                        bits = np.int32(j.view(np.int32) << _MANTISSA)
                        e = np.int32(bits + np.float32(a).view(np.int32)).view(
                            np.float32
                        )  # <<<
                        ranked_k[s] = d * e
                        sums_k[s] += e
                    if entropy is not None:
                        prob_k[s] = offset + sign * Phi
                        tilted_k[s] = d
                if entropy is not None:
                    for s in range(W):
                        p = prob_k[s]
                        p2 = p * p
                        a = (_EXP[2] + _EXP[3] * p) + p2 * (
                            _EXP[4] + _EXP[5] * p + _EXP[6] * p2
                        )
                        e = (_EXP[0] + _EXP[1] * p) + p2 * a  # e^p
                        tilted_k[s] *= e
                        normaliser[s] += e
                        mean_prob[s] += e * p
                seen += 1
                # Four factors stay normal numbers: h(v) up to v = 7e8, a floor from 1e-9 on.
                if seen % 4 == 0:
                    for s in range(W):
                        bits = np.float32(mantissa[s]).view(np.int32)
                        shift = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> _MANTISSA)
                        bits = np.int32(bits - np.int32(shift << _MANTISSA))
                        exponent[s] += np.float32(shift)
                        mantissa[s] = bits.view(np.float32)

            # Cross-entropy: log-mean-exp over draws, whose gradient is a softmax.
            for s in range(W):
                bits = np.float32(mantissa[s]).view(np.int32)
                shift = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> _MANTISSA)
                bits = np.int32(bits - np.int32(shift << _MANTISSA))
                z = bits.view(np.float32) - _ONE
                z2 = z * z
                a = (_LOG2[0] + _LOG2[1] * z) + z2 * (_LOG2[2] + _LOG2[3] * z)
                b = (_LOG2[4] + _LOG2[5] * z) + z2 * (_LOG2[6] + _LOG2[7] * z)
                a = z * (a + z2 * z2 * b)
                log2_p[s] = a + (exponent[s] + np.float32(shift)) - _LOG2_E * square[s]
            top = log2_p[0]
            for s in range(S):
                top = max(top, log2_p[s])
            for s in range(W):
                x = max(log2_p[s] - top, _LEAST)
                j = np.float32(x + _TO_INTEGER)
                f = x - (j - _TO_INTEGER)
                f2 = f * f
                a = (_EXP2[0] + _EXP2[1] * f) + f2 * (
                    (_EXP2[2] + _EXP2[3] * f) + f2 * (_EXP2[4] + _EXP2[5] * f)
                )
                bits = np.int32(j.view(np.int32) << _MANTISSA)
                log2_p[s] = np.int32(bits + np.float32(a).view(np.int32)).view(np.float32)
            total = 0.0
            for s in range(S):
                total += log2_p[s]
            terms[0, r, i] = math.log(S) - top * math.log(2) - math.log(total)
            to_draw = np.float32(scale * ce * row_weight[i] / total)
            for s in range(S):
                by_draw[s] = to_draw * log2_p[s]
            if rank is not None:
                pairs = 0.0
                to_side = np.float32(scale * per_pair * row_weight[i] * rank * gain / S)
                for s in range(S):
                    pairs += sums[0, s] * sums[1, s]
                    by_side[0, s] = to_side * sums[1, s]
                    by_side[1, s] = to_side * sums[0, s]
                terms[1, r, i] = pairs * per_pair / S

            # Entropy H = log Z - E p, where E is the mean by the softmax e^p / Z over labels:
            # dH/dp_k = -(p_k - E p) e^{p_k} / Z. A row with no observed label has none.
            if entropy is not None and seen > 0:
                to_label = np.float32(scale * entropy * row_weight[i] / S)
                product, logs, means = 1.0, 0.0, 0.0
                for s in range(S):
                    mean_prob[s] /= normaliser[s]
                    by_label[s] = to_label / normaliser[s]
                for s in range(S):
                    means += mean_prob[s]
                    product *= normaliser[s]
                    if product > 1e200:  # one logarithm for many draws
                        logs += math.log(product)
                        product = 1.0
                terms[2, r, i] = (logs + math.log(product) - means) / S

            for k in range(L):
                if t[i, k] == _ZERO:
                    dv_mean[i, r, k] = _ZERO
                    continue
                hazard_k, dw_k, sign = hazard[k], dw[k], t[i, k]
                if rank is not None:
                    ranked_k, by_side_k = ranked[k], by_side[1 if sign > _ZERO else 0]
                if entropy is not None:
                    prob_k, tilted_k = prob[k], tilted[k]
                for s in range(W):
                    slope_s = hazard_k[s] * by_draw[s]
                    if rank is not None:
                        slope_s += ranked_k[s] * by_side_k[s]
                    if entropy is not None:
                        slope_s += (
                            sign * (tilted_k[s] * by_label[s]) * (prob_k[s] - mean_prob[s])
                        )
                    dw_k[s] += sign * slope_s
                    slope[s] = slope_s
                a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = _ZERO
                for s in range(0, W, 8):
                    a0 += slope[s]
                    a1 += slope[s + 1]
                    a2 += slope[s + 2]
                    a3 += slope[s + 3]
                    a4 += slope[s + 4]
                    a5 += slope[s + 5]
                    a6 += slope[s + 6]
                    a7 += slope[s + 7]
                dv_mean[i, r, k] = ((a0 + a4) + (a1 + a5)) + ((a2 + a6) + (a3 + a7))

        if i == min(n, (g + 1) * share) - 1:  # the last of them
            for h in range(H):
                for k in range(L):
                    dv_draw[g, h, k] = dw[k, h] - dw[k, H + h] if antithetic else dw[k, h]


def normal_loop(start, stop, seed, out):  # type: ignore[no-untyped-def]
    """Normal numbers of blocks start to stop; see `mpvae.kernel.normal_draws`."""
    s0 = np.empty(_LANES, np.uint32)
    s1 = np.empty(_LANES, np.uint32)
    s2 = np.empty(_LANES, np.uint32)
    s3 = np.empty(_LANES, np.uint32)
    for block in range(start, stop):
        for lane in range(_LANES):  # splitmix64, started at a place the seed is hashed to
            a = seed + np.uint64(0x9E3779B97F4A7C15)
            a = (a ^ (a >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            a = (a ^ (a >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            a = a ^ (a >> np.uint64(31))
            a += np.uint64(0x9E3779B97F4A7C15) * np.uint64(2 * (block * _LANES + lane) + 1)
            b = a + np.uint64(0x9E3779B97F4A7C15)
            a = (a ^ (a >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            a = (a ^ (a >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            a = a ^ (a >> np.uint64(31))
            b = (b ^ (b >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            b = (b ^ (b >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            b = b ^ (b >> np.uint64(31))
            s0[lane] = np.uint32(a)
            s1[lane] = np.uint32(a >> np.uint64(32))
            s2[lane] = np.uint32(b)
            s3[lane] = np.uint32(b >> np.uint64(32))
        for place in range(block * BLOCK, (block + 1) * BLOCK, 2 * _LANES):
            first, second = (
                out[place : place + _LANES],
                out[place + _LANES : place + 2 * _LANES],
            )
            for lane in range(_LANES):
                x0, x1, x2, x3 = s0[lane], s1[lane], s2[lane], s3[lane]
                c = np.uint32(x0 + x3)  # >>> xoshiro128++, twice
                uniform = np.uint32(np.uint32((c << 7) | (c >> 25)) + x0)
                c = np.uint32(x1 << 9)
                x2 ^= x0
                x3 ^= x1
                x1 ^= x2
                x0 ^= x3
                x2 ^= c
                x3 = np.uint32((x3 << 11) | (x3 >> 21))
                c = np.uint32(x0 + x3)
                angle = np.uint32(np.uint32((c << 7) | (c >> 25)) + x0)
                c = np.uint32(x1 << 9)
                x2 ^= x0
                x3 ^= x1
                x1 ^= x2
                x0 ^= x3
                x2 ^= c
                x3 = np.uint32((x3 << 11) | (x3 >> 21))  # <<<
                s0[lane], s1[lane], s2[lane], s3[lane] = x0, x1, x2, x3

                # radius = sqrt(-2 log u), u in (0, 1] with 31 bits
                u = (np.float32(np.int32(uniform >> 1)) + _HALF) * np.float32(2**-31)
                bits = np.float32(u).view(np.int32)
                shift = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> _MANTISSA)
                bits = np.int32(bits - np.int32(shift << _MANTISSA))
                z = bits.view(np.float32) - _ONE
                z2 = z * z
                a0 = (_LOG2[0] + _LOG2[1] * z) + z2 * (_LOG2[2] + _LOG2[3] * z)
                b0 = (_LOG2[4] + _LOG2[5] * z) + z2 * (_LOG2[6] + _LOG2[7] * z)
                log2_u = np.float32(shift) + z * (a0 + z2 * z2 * b0)
                radius = np.float32(math.sqrt(max(np.float32(-2) * _LN_2 * log2_u, _ZERO)))

                # The lower 30 bits are an angle in the quarter turn around 0; of the other
                # two, one swaps cosine and sine, one turns by half a turn: the full circle.
                x = np.float32(np.int32(np.uint32(angle << 2))) * np.float32(2**-31)
                y = x * x
                sine = x * ((_SIN[0] + _SIN[1] * y) + y * y * (_SIN[2] + _SIN[3] * y))
                cosine = (_COS[0] + _COS[1] * y) + y * y * (_COS[2] + _COS[3] * y)
                swap = np.int32(angle << 1) < 0
                radius = -radius if np.int32(angle) < 0 else radius
                first[lane] = radius * (sine if swap else cosine)
                second[lane] = radius * (cosine if swap else sine)


def absolute_loop(start, stop, A, B, out):  # type: ignore[no-untyped-def]
    """Sums of absolute differences between rows start to stop of A and all rows of B.

    Lanes of the vector unit are rows of B, so each sum is in the order of its columns.
    """
    tile = np.empty((A.shape[1], _TILE))  # some rows of B, columns first
    sums = np.empty((4, _TILE))
    s0, s1, s2, s3 = sums[0], sums[1], sums[2], sums[3]
    for first in range(0, len(B), _TILE):
        width = min(_TILE, len(B) - first)
        tile[:, width:] = 0.0
        for j in range(width):
            tile[:, j] = B[first + j]
        for i in range(start, stop, 4):  # rows past the last are the last one again
            i1, i2, i3 = min(i + 1, stop - 1), min(i + 2, stop - 1), min(i + 3, stop - 1)
            sums[:] = 0.0
            for d in range(A.shape[1]):
                a0, a1, a2, a3 = A[i, d], A[i1, d], A[i2, d], A[i3, d]
                b = tile[d]
                for j in range(_TILE):
                    s0[j] += abs(a0 - b[j])
                    s1[j] += abs(a1 - b[j])
                    s2[j] += abs(a2 - b[j])
                    s3[j] += abs(a3 - b[j])
            last = first + width
            out[i, first:last] = s0[:width]
            out[i1, first:last] = s1[:width]
            out[i2, first:last] = s2[:width]
            out[i3, first:last] = s3[:width]
