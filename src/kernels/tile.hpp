// The one inner loop behind every product here: a tile of sums that stays in registers.
#pragma once
#include <immintrin.h>

#include <array>
#include <cstdint>
#include <utility>

namespace oxygen {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

constexpr int kSums = 12;   // vectors of sums in flight: they hide a multiply-add's latency and fit 16 registers
constexpr int kPanel = 16;  // columns of packed weights that lie together: a cache line

// A vector of the machine; `Loose` is one at any address.
typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef float Loose __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vector load(const float* at) { return *reinterpret_cast<const Loose*>(at); }
inline Vector load(const std::int8_t* at) {  // g++ 12 makes 30 instructions of __builtin_convertvector
#if defined(__AVX512F__)
  const auto all = static_cast<__mmask16>(-1);
  return _mm512_maskz_cvtepi32_ps(
      all, _mm512_maskz_cvtepi8_epi32(all, _mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
#else
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
#endif
}

template <class W>  // of weights: float or int8_t
struct Operands {
  const float* x;            // element (row, i) at x[row * x_row + i * kStep]
  std::int64_t x_row;
  const W* w;                // element (i, column) at w[i * w_step + column]
  std::int64_t w_step;
  const W* ahead;            // memory to fetch meanwhile, `ahead_step` elements per i
  std::int64_t ahead_step;
};

// y(row, column) += sum over i < n of x(row, i) * w(i, column), for kRows rows and kVectors * kLanes columns.
// Each sum is one chain in the order of i: it has the same bits in whatever tile it is computed.
template <int kRows, int kVectors, int kStep, class W>
void tile(Operands<W> in, std::int64_t n, float* y, std::int64_t y_row) {
  Vector sum[kRows][kVectors];
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = in.x + r * in.x_row;
    for (int c = 0; c < kVectors; ++c) sum[r][c] = load(y + r * y_row + c * kLanes);
  }
  for (std::int64_t i = 0; i < n; ++i, in.w += in.w_step, in.ahead += in.ahead_step) {
    __builtin_prefetch(in.ahead, 0, 2);
    Vector w[kVectors];
    for (int c = 0; c < kVectors; ++c) w[c] = load(in.w + c * kLanes);
    for (int r = 0; r < kRows; ++r)
      for (int c = 0; c < kVectors; ++c) sum[r][c] += x[r][i * kStep] * w[c];
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kVectors; ++c) *reinterpret_cast<Loose*>(y + r * y_row + c * kLanes) = sum[r][c];
}

// The same for any number of rows up to kSums / kVectors.
template <int kVectors, int kStep, class W = float>
void tile_of(std::int64_t rows, const Operands<W>& in, std::int64_t n, float* y, std::int64_t y_row) {
  using Tile = void (*)(Operands<W>, std::int64_t, float*, std::int64_t);
  static constexpr auto tiles = []<int... r>(std::integer_sequence<int, r...>) {
    return std::array<Tile, sizeof...(r)>{tile<r + 1, kVectors, kStep, W>...};
  }(std::make_integer_sequence<int, kSums / kVectors>());
  tiles[rows - 1](in, n, y, y_row);
}

}  // namespace oxygen
