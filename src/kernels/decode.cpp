// A decode step in one call: its products stream all weights through the caches, so that between them the interpreter
// would come from memory again for each of a hundred small operations, which takes longer than the operations.
#include <algorithm>
#include <vector>

#include "kernels.hpp"

using std::int64_t;

void oxygen_decode(const Model* model, const float* x, int64_t rows, float* k, float* v, int64_t pool, const float* cos,
                   const float* sin, const Place* places, float* logits) {
  const auto [layers, norm, head, depth, width, heads, dim, mlp, vocab, eps] = *model;
  const int64_t queries = heads * dim, qkv_row = queries + 2 * dim;
  static thread_local std::vector<float> room;  // kept: fresh memory costs a page fault per 4 KiB
  room.resize(rows * (2 * width + qkv_row + queries + 3 * mlp));
  float *y = room.data(), *h = y + rows * width, *qkv = h + rows * width, *attended = qkv + rows * qkv_row;
  float *gate_up = attended + rows * queries, *gated = gate_up + rows * 2 * mlp;
  std::copy(x, x + rows * width, y);
  for (const Layer* layer = layers; layer < layers + depth; ++layer, k += pool, v += pool) {
    oxygen_rms(y, rows, width, eps, layer->norm1, nullptr, h);
    oxygen_product(h, rows, width, layer->qkv, width, qkv_row, nullptr, 0, qkv);
    oxygen_rotate(qkv, rows, qkv_row, heads + 1, dim, cos, sin, places);
    for (int64_t r = 0; r < rows; ++r) {
      const float* key = qkv + r * qkv_row + queries;
      std::copy(key, key + dim, k + places[r].slot * dim);
      std::copy(key + dim, key + 2 * dim, v + places[r].slot * dim);
    }
    oxygen_attend(qkv, rows, qkv_row, heads, dim, k, v, places, attended);
    oxygen_product(attended, rows, queries, layer->out, queries, width, y, width, y);
    oxygen_rms(y, rows, width, eps, layer->norm2, nullptr, h);
    oxygen_product(h, rows, width, layer->gate_up, width, 2 * mlp, nullptr, 0, gate_up);
    oxygen_gelu(gate_up, gate_up + mlp, rows, 2 * mlp, mlp, gated);
    oxygen_product(gated, rows, mlp, layer->down, mlp, width, y, width, y);
  }
  oxygen_rms(y, rows, width, eps, norm, nullptr, h);
  oxygen_product(h, rows, width, head, width, vocab, nullptr, 0, logits);
}
