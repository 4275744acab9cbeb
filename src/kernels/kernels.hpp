// Kernels for the language model and the action expert on the CPU, fp32. Called through ctypes with the addresses of
// torch's tensors: see oxygen_ros/model/kernels.py, which checks what it passes.
#pragma once
#include <cstdint>

extern "C" {

// Raised when a signature or a struct here changes, with _VERSION in kernels.py: a library left over from an older
// build is refused, not called with the wrong arguments.
constexpr int kVersion = 1;
int oxygen_version();

struct Run {  // of slots
  std::int64_t begin, end;
};

constexpr std::int64_t kRuns = 2;

// Where a causal row is: its RoPE position, the slot for its keys and values, the slots it sees (one run may be empty).
struct Place {
  std::int64_t position, slot;
  Run runs[kRuns];
};

// Of a product, [out, in]. packed: [panels, in, 16], filled up to whole panels: fp32, or int8 with `scales` [out].
struct Weights {
  const void* packed;
  const float* scales;  // null: fp32
};

// y = x W^T [+ add]. x: [rows, in], rows `x_row` apart. add: null, or [rows, out] with rows `add_row` apart (0: one row for all). y: [rows, out].
void oxygen_product(const float* x, std::int64_t rows, std::int64_t x_row, Weights weights, std::int64_t in,
                    std::int64_t out, const float* add, std::int64_t add_row, float* y);

// Attention over a pool, one KV head for all query heads. q: [rows, heads, dim], rows `q_row` apart, dim a multiple of
// 16. k, v: [slots, dim]. y: [rows, heads, dim].
void oxygen_attend(const float* q, std::int64_t rows, std::int64_t q_row, std::int64_t heads, std::int64_t dim,
                   const float* k, const float* v, const Place* places, float* y);

// y = x / sqrt(mean(x^2) + eps) [* weight] [+ shift], for x and y [rows, width].
void oxygen_rms(const float* x, std::int64_t rows, std::int64_t width, float eps, const float* weight,
                const float* shift, float* y);

// Rotate `heads` heads of each row in place by its position; pairs are the two halves of a head. x: [rows, heads, dim],
// rows `x_row` apart. cos, sin: [rows, dim / 2]; or, with places, of all positions.
void oxygen_rotate(float* x, std::int64_t rows, std::int64_t x_row, std::int64_t heads, std::int64_t dim,
                   const float* cos, const float* sin, const Place* places);

// y = gelu(x) [* times] in its tanh form. x, times: [rows, width], rows `x_row` apart in both. y: [rows, width].
void oxygen_gelu(const float* x, const float* times, std::int64_t rows, std::int64_t x_row, std::int64_t width,
                 float* y);

struct Layer {  // norms are [width]
  const float *norm1, *norm2;
  Weights qkv, out, gate_up, down;
};

struct Model {
  const Layer* layers;
  const float* norm;
  Weights head;
  std::int64_t depth, width, heads, dim, mlp, vocab;
  float eps;
};

// A decode step: causal rows x [rows, width], which all go on through every layer, to logits [rows, vocab]. Writes their
// keys and values. k, v: the pools of all layers, `pool` floats each. cos, sin: of all positions.
void oxygen_decode(const Model* model, const float* x, std::int64_t rows, float* k, float* v, std::int64_t pool,
                   const float* cos, const float* sin, const Place* places, float* logits);
}
