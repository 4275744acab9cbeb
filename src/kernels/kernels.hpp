// Kernels for the language model and the action expert on the CPU, fp32. Called through ctypes with the addresses of
// torch's tensors: see oxygen_ros/model/kernels.py, which checks what it passes.
#pragma once
#include <cstdint>

extern "C" {

struct Run {  // of slots
  std::int64_t begin, end;
};

constexpr std::int64_t kRuns = 2;

// Where a causal row is: its RoPE position, the slot for its keys and values, the slots it sees (one run may be empty).
struct Place {
  std::int64_t position, slot;
  Run runs[kRuns];
};

// y = x W^T [+ add]. x: [rows, in], rows `x_row` apart. packed: [panels, in, 16], the weights [out, in] filled up to
// whole panels. add: null, or [rows, out] with rows `add_row` apart (0: one row for all). y: [rows, out].
void oxygen_product(const float* x, std::int64_t rows, std::int64_t x_row, const float* packed, std::int64_t in,
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

struct Layer {  // products are packed; norms [width]
  const float *norm1, *qkv, *out, *norm2, *gate_up, *down;
};

struct Model {
  const Layer* layers;
  const float *norm, *head;
  std::int64_t depth, width, heads, dim, mlp, vocab;
  float eps;
};

// A decode step: causal rows x [rows, width], which all go on through every layer, to logits [rows, vocab]. Writes their
// keys and values. k, v: the pools of all layers, `pool` floats each. cos, sin: of all positions.
void oxygen_decode(const Model* model, const float* x, std::int64_t rows, float* k, float* v, std::int64_t pool,
                   const float* cos, const float* sin, const Place* places, float* logits);
}
