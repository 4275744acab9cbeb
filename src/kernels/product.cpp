// y = x W^T for packed weights, as fast as memory brings the weights when rows are few, near the peak when many.
#include <algorithm>

#include "kernels.hpp"
#include "tile.hpp"

using namespace oxygen;
using std::int64_t;

namespace {

constexpr int kVectors = kPanel / kLanes;
constexpr int64_t kTall = kSums / kVectors;  // rows of a tile
constexpr int64_t kBlock = 96;               // rows that go over the weights together
constexpr int64_t kDepth = 256;              // weights of a panel that all rows use before the next come

template <class W>
void product(const float* x, int64_t rows, int64_t x_row, const W* packed, const float* scales, int64_t in, int64_t out,
             const float* add, int64_t add_row, float* y) {
  const int64_t panels = (out + kPanel - 1) / kPanel, blocks = (rows + kBlock - 1) / kBlock;
#pragma omp parallel for collapse(2) if (rows * in * out > (1 << 18))
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t first = block * kBlock, count = std::min(kBlock, rows - first);
      const int64_t tiles = (count + kTall - 1) / kTall;
      float sums[kBlock * kPanel];
      std::fill(sums, sums + count * kPanel, 0.0f);
      for (int64_t i = 0; i < in; i += kDepth) {
        const int64_t n = std::min(kDepth, in - i);
        const W* w = packed + (panel * in + i) * kPanel;
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t begin = count * t / tiles, end = count * (t + 1) / tiles;
          // Every tile fetches its part of the weights that follow: memory is never idle while the last rows compute.
          const W* ahead = w + (n + n * t / tiles) * kPanel;
          tile_of<kVectors, 1, W>(end - begin,
                                  {x + (first + begin) * x_row + i, x_row, w, kPanel, ahead, kPanel / tiles}, n,
                                  sums + begin * kPanel, kPanel);
        }
      }
      const int64_t width = std::min<int64_t>(kPanel, out - panel * kPanel);
      for (int64_t r = 0; r < count; ++r) {
        float* to = y + (first + r) * out + panel * kPanel;
        const float* more = add ? add + (first + r) * add_row + panel * kPanel : nullptr;
        float* sum = sums + r * kPanel;
        if (scales)
          for (int64_t c = 0; c < width; ++c) sum[c] *= scales[panel * kPanel + c];
        for (int64_t c = 0; c < width; ++c) to[c] = sum[c] + (more ? more[c] : 0.0f);
      }
    }
}

}  // namespace

int oxygen_version() { return kVersion; }

void oxygen_product(const float* x, int64_t rows, int64_t x_row, Weights weights, int64_t in, int64_t out,
                    const float* add, int64_t add_row, float* y) {
  if (weights.scales)
    product(x, rows, x_row, static_cast<const std::int8_t*>(weights.packed), weights.scales, in, out, add, add_row, y);
  else
    product(x, rows, x_row, static_cast<const float*>(weights.packed), nullptr, in, out, add, add_row, y);
}
