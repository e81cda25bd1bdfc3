// SPDX-License-Identifier: MIT
#include "base/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sharpi {
namespace {

static_assert(std::endian::native == std::endian::little, "loads below are little-endian");

constexpr uint64_t kP1 = 0x9E3779B185EBCA87u;
constexpr uint64_t kP2 = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kP3 = 0x165667B19E3779F9u;
constexpr uint64_t kP4 = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kP5 = 0x27D4EB2F165667C5u;

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

constexpr uint64_t round_lane(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kP2, 31) * kP1;
}

/// Feeds whole stripes of four 8-byte words; the lanes are independent, so four products overlap.
const std::byte* feed(std::array<uint64_t, 4>& lanes, const std::byte* p, uint64_t n_stripes) {
  auto [a, b, c, d] = lanes;
  for (uint64_t i = 0; i < n_stripes; ++i, p += 32) {
    a = round_lane(a, load<uint64_t>(p));
    b = round_lane(b, load<uint64_t>(p + 8));
    c = round_lane(c, load<uint64_t>(p + 16));
    d = round_lane(d, load<uint64_t>(p + 24));
  }
  lanes = {a, b, c, d};
  return p;
}

}  // namespace

Hash64::Hash64(uint64_t seed)
    : seed_(seed), lanes_{seed + kP1 + kP2, seed + kP2, seed, seed - kP1} {}

void Hash64::add(const void* data, uint64_t bytes) {
  if (bytes == 0) return;
  const auto* p = static_cast<const std::byte*>(data);
  const uint64_t waiting = total_ % kStripe;
  total_ += bytes;
  if (waiting != 0) {
    const uint64_t take = std::min(bytes, kStripe - waiting);
    std::memcpy(tail_.data() + waiting, p, take);
    p += take;
    bytes -= take;
    if (waiting + take < kStripe) return;
    feed(lanes_, tail_.data(), 1);
  }
  p = feed(lanes_, p, bytes / kStripe);
  if (bytes % kStripe != 0) std::memcpy(tail_.data(), p, bytes % kStripe);
}

uint64_t Hash64::value() const {
  uint64_t h = seed_ + kP5;
  if (total_ >= kStripe) {
    h = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
        std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) h = (h ^ round_lane(0, lane)) * kP1 + kP4;
  }
  h += total_;
  const std::byte* p = tail_.data();
  uint64_t left = total_ % kStripe;
  for (; left >= 8; left -= 8, p += 8) {
    h = std::rotl(h ^ round_lane(0, load<uint64_t>(p)), 27) * kP1 + kP4;
  }
  if (left >= 4) {
    h = std::rotl(h ^ (load<uint32_t>(p) * kP1), 23) * kP2 + kP3;
    left -= 4;
    p += 4;
  }
  for (; left != 0; --left, ++p) h = std::rotl(h ^ (std::to_integer<uint64_t>(*p) * kP5), 11) * kP1;
  h = (h ^ (h >> 33)) * kP2;
  h = (h ^ (h >> 29)) * kP3;
  return h ^ (h >> 32);
}

void StripedHash64::add(uint64_t at, const void* data, uint64_t n, uint32_t first, uint32_t step) {
  const auto* p = static_cast<const std::byte*>(data);
  for (uint64_t done = 0; done < n;) {
    const uint64_t bytes = std::min(n - done, kBlock - (at + done) % kBlock),
                   lane = (at + done) / kBlock % kLanes;
    if (lane % step == first) lanes_[lane].hash.add(p + done, bytes);
    done += bytes;
  }
}

uint64_t StripedHash64::value() const {
  Hash64 all;
  for (const Lane& lane : lanes_) all.add_u64(lane.hash.value());
  return all.value();
}

uint64_t striped_hash64(const void* data, uint64_t bytes) {
  StripedHash64 hash;
  hash.add(0, data, bytes);
  return hash.value();
}

uint64_t hash64(const void* data, uint64_t bytes, uint64_t seed) {
  Hash64 hash(seed);
  hash.add(data, bytes);
  return hash.value();
}

}  // namespace sharpi
