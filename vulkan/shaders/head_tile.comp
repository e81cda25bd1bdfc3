#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "head_product.glsl"
// Of many rows: a workgroup has 64 of them and 64 outputs of a head.
const bool kGates = false;
const int TYPE_UP = 0;
#define up_row_bytes row_bytes  // there is one matrix
#define X_OF(r) x_of(r)
#define BY_FOURS (FOURS != 0)
#include "product_tile.glsl"
