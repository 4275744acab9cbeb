// Attention over a pool of slots, read in place: each row says which slots it sees.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels.hpp"
#include "math.hpp"
#include "tile.hpp"

using namespace oxygen;
using std::int64_t;

namespace {

constexpr int64_t kGroup = 2;    // neighbouring rows that see the same slots are computed together
constexpr int64_t kScored = 10;  // keys scored at once: as many as have their addresses in registers
constexpr int64_t kKeys = 128;   // keys whose values all heads use before the next come
constexpr int kVectors = kPanel / kLanes;

// The query heads of a few rows as columns: one KV head serves them all. kLanes columns are computed at once, in two
// passes over the keys: all weights first, then the values. The first pass fetches the values, the second the next keys.
struct Group {
  const Run* runs;
  int64_t heads, dim, keys;
  const float *k, *v, *next;  // next: keys that will be read after these

  void attend(const float* q, int64_t q_row, int64_t rows, float* y) const {
    static thread_local std::vector<float> room;
    room.resize((dim + keys) * kLanes);
    float *queries = room.data(), *weights = queries + dim * kLanes;
    const int64_t columns = rows * heads;
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    for (int64_t first = 0; first < columns; first += kLanes, y += kLanes * dim) {
      const int64_t width = std::min<int64_t>(kLanes, columns - first);
      std::fill(queries, queries + dim * kLanes, 0.0f);
      for (int64_t c = 0; c < width; ++c) {
        const float* from = q + (first + c) / heads * q_row + (first + c) % heads * dim;
        for (int64_t i = 0; i < dim; ++i) queries[i * kLanes + c] = scale * from[i];
      }
      float sums[kLanes];
      score(queries, weights);
      exponentials(weights, sums);
      gather(weights, width, y);
      for (int64_t c = 0; c < width; ++c)
        for (int64_t i = 0; i < dim; ++i) y[c * dim + i] /= sums[c];
    }
  }

  // weights [keys, kLanes] = the products of the keys with the queries.
  void score(const float* queries, float* weights) const {
    std::fill(weights, weights + keys * kLanes, 0.0f);
    for (const Run* run = runs; run < runs + kRuns; ++run)
      for (int64_t at = run->begin; at < run->end; at += kScored) {
        const int64_t n = std::min<int64_t>(kScored, run->end - at);
        tile_of<1, 1>(n, {k + at * dim, dim, queries, kLanes, v + at * dim, n}, dim, weights, kLanes);
        weights += n * kLanes;
      }
  }

  // weights = e^(weights - largest), and their sums, by column.
  void exponentials(float* weights, float* sums) const {
    float largest[kLanes];
    std::fill(largest, largest + kLanes, -INFINITY);
    for (int64_t i = 0; i < keys; ++i)
      for (int c = 0; c < kLanes; ++c) largest[c] = std::max(largest[c], weights[i * kLanes + c]);
    std::fill(sums, sums + kLanes, 0.0f);
    for (int64_t i = 0; i < keys; ++i)
      for (int c = 0; c < kLanes; ++c) {
        const float weight = exponential(weights[i * kLanes + c] - largest[c]);
        weights[i * kLanes + c] = weight;
        sums[c] += weight;
      }
  }

  // y [width, dim] = the values, weighted.
  void gather(const float* weights, int64_t width, float* y) const {
    constexpr int64_t tall = kSums / kVectors;
    const int64_t tiles = (width + tall - 1) / tall;
    std::fill(y, y + width * dim, 0.0f);
    const float* ahead = next;
    const int64_t step = kPanel / tiles;
    for (const Run* run = runs; run < runs + kRuns; ++run)
      for (int64_t at = run->begin; at < run->end; at += kKeys) {
        const int64_t n = std::min(kKeys, run->end - at);
        for (int64_t d = 0; d < dim; d += kPanel)
          for (int64_t t = 0; t < tiles; ++t) {
            const int64_t begin = width * t / tiles, end = width * (t + 1) / tiles;
            tile_of<kVectors, kLanes>(end - begin, {weights + begin, 1, v + at * dim + d, dim, ahead, step}, n,
                                            y + begin * dim + d, dim);
            ahead += n * step;
          }
        weights += n * kLanes;
      }
  }
};

}  // namespace

void oxygen_attend(const float* q, int64_t rows, int64_t q_row, int64_t heads, int64_t dim, const float* k,
                   const float* v, const Place* places, float* y) {
  std::vector<int64_t> begins;  // of groups
  for (int64_t row = 0; row < rows; ++row)
    if (begins.empty() || row == begins.back() + kGroup ||
        std::memcmp(places[row].runs, places[begins.back()].runs, sizeof places->runs))
      begins.push_back(row);
  const int64_t groups = begins.size();
  begins.push_back(rows);
#pragma omp parallel for schedule(dynamic)
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t row = begins[g];
    const Run* runs = places[row].runs;
    int64_t keys = 0;
    for (int64_t i = 0; i < kRuns; ++i) keys += runs[i].end - runs[i].begin;
    const float* next = k + (g + 1 < groups ? places[begins[g + 1]].runs[0].begin : 0) * dim;
    Group{runs, heads, dim, keys, k, v, next}.attend(q + row * q_row, q_row, begins[g + 1] - row, y + row * heads * dim);
  }
}
