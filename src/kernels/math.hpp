// exp() as a plain expression, so that the compiler can compute a vector of them at once.
#pragma once
#include <bit>
#include <cstdint>

namespace oxygen {

// e^x within 2 units in the last place, 0 below -87 (a softmax needs no more), NaN for NaN. Written as 2^n e^r with
// |r| <= ln(2) / 2 and the Taylor series of e^r; ln(2) in two parts, after Cody and Waite.
inline float exponential(float x) {
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to a whole number in the low bits
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const auto exponent = std::bit_cast<std::uint32_t>(shifted) << 23;
  const float scaled = std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + exponent);
  return x < -87.0f ? 0.0f : scaled;
}

}  // namespace oxygen
