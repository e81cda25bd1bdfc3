#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
// The products of shaders/product.comp for many rows.
layout(constant_id = 1) const int TYPE = 0;
layout(constant_id = 2) const int TYPE_UP = 0;
#include "product.glsl"
#include "product_tile.glsl"
