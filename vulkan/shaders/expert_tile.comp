#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
// Products of routed experts' matrices with the rows that chose them, in the order of shaders/expert_sort.comp.
layout(constant_id = 1) const int TYPE = 0;
layout(constant_id = 2) const int TYPE_UP = 0;
#include "expert_rows.glsl"
#include "product_tile.glsl"
