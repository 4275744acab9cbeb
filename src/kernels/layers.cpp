// A decode step's layers in one call: between products that stream all weights through the caches, the interpreter
// would come from memory again for each of a hundred small operations, which takes longer than the operations.
#include <cstring>
#include <vector>

#include "kernels.hpp"

using std::int64_t;

void oxygen_layers(const Layer* layers, const Sizes* sizes, float* x, int64_t rows, float* k, float* v, int64_t pool,
                   const float* cos, const float* sin, const Place* places) {
  const auto [depth, width, heads, dim, mlp, eps] = *sizes;
  const int64_t queries = heads * dim, qkv_row = queries + 2 * dim;
  static thread_local std::vector<float> room;  // kept: fresh memory costs a page fault per 4 KiB
  room.resize(rows * (width + qkv_row + queries + 3 * mlp));
  float *h = room.data(), *qkv = h + rows * width, *attended = qkv + rows * qkv_row;
  float *gate_up = attended + rows * queries, *gated = gate_up + rows * 2 * mlp;
  for (const Layer* layer = layers; layer < layers + depth; ++layer, k += pool, v += pool) {
    oxygen_rms(x, rows, width, eps, layer->norm1, nullptr, h);
    oxygen_product(h, rows, width, layer->qkv, width, qkv_row, nullptr, 0, qkv);
    oxygen_rotate(qkv, rows, qkv_row, heads + 1, dim, cos, sin, places);
    for (int64_t r = 0; r < rows; ++r) {
      const float* key = qkv + r * qkv_row + queries;
      std::memcpy(k + places[r].slot * dim, key, dim * sizeof(float));
      std::memcpy(v + places[r].slot * dim, key + dim, dim * sizeof(float));
    }
    oxygen_attend(qkv, rows, qkv_row, heads, dim, k, v, places, attended);
    oxygen_product(attended, rows, queries, layer->out, queries, width, x, width, x);
    oxygen_rms(x, rows, width, eps, layer->norm2, nullptr, h);
    oxygen_product(h, rows, width, layer->gate_up, width, 2 * mlp, nullptr, 0, gate_up);
    oxygen_gelu(gate_up, gate_up + mlp, rows, 2 * mlp, mlp, gated);
    oxygen_product(gated, rows, mlp, layer->down, mlp, width, x, width, x);
  }
}
