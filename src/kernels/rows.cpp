// What happens to a row between the products, each in one pass over it.
#include <cmath>

#include "kernels.hpp"
#include "math.hpp"

using oxygen::exponential;
using std::int64_t;

void oxygen_rms(const float* x, int64_t rows, int64_t width, float eps, const float* weight, const float* shift,
                float* y) {
#pragma omp parallel for if (rows * width > (1 << 16))
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = x + r * width;
    float* to = y + r * width;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += from[i] * from[i];
    const float scale = 1 / std::sqrt(squares / width + eps);
    for (int64_t i = 0; i < width; ++i) to[i] = from[i] * scale;
    if (weight)
      for (int64_t i = 0; i < width; ++i) to[i] *= weight[i];
    if (shift)
      for (int64_t i = 0; i < width; ++i) to[i] += shift[i];
  }
}

void oxygen_rotate(float* x, int64_t rows, int64_t x_row, int64_t heads, int64_t dim, const float* cos,
                   const float* sin, const Place* places) {
  const int64_t half = dim / 2;
#pragma omp parallel for if (rows * heads * dim > (1 << 16))
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (places ? places[r].position : r) * half;
    const float *c = cos + at, *s = sin + at;
    for (int64_t h = 0; h < heads; ++h) {
      float *a = x + r * x_row + h * dim, *b = a + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float low = a[i] * c[i] - b[i] * s[i];
        b[i] = b[i] * c[i] + a[i] * s[i];
        a[i] = low;
      }
    }
  }
}

void oxygen_gelu(const float* x, const float* times, int64_t rows, int64_t x_row, int64_t width, float* y) {
#pragma omp parallel for if (rows * width > (1 << 14))
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = x + r * x_row;
    float* to = y + r * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {  // x * sigmoid(2 z) = x / 2 (1 + tanh z)
      const float z = 0.797884561f * (from[i] + 0.044715f * from[i] * from[i] * from[i]);
      to[i] = from[i] / (1 + exponential(-2 * z));
    }
    if (times)
      for (int64_t i = 0; i < width; ++i) to[i] *= times[r * x_row + i];
  }
}
