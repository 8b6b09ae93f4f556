#include "layers.h"

#include <algorithm>
#include <cmath>

void multiply_add(const Matrix& x, const Matrix& w, Matrix& y) {
  for (std::size_t row = 0; row < x.rows; ++row) {
    for (std::size_t in = 0; in < w.rows; ++in) {
      const float factor = x[row][in];
      for (std::size_t out = 0; out < w.columns; ++out) y[row][out] += factor * w[in][out];
    }
  }
}

Matrix multiply(const Matrix& x, const Matrix& w) {
  Matrix y(x.rows, w.columns);
  multiply_add(x, w, y);
  return y;
}

Matrix multiply_backward(const Matrix& x, Parameter& w, const Matrix& d_y) {
  Matrix d_x(x.rows, x.columns);
  for (std::size_t row = 0; row < x.rows; ++row) {
    for (std::size_t in = 0; in < x.columns; ++in) {
      const float* weights = w.value[in];
      float* d_weights = w.gradient[in];
      const float factor = x[row][in];
      float sum = 0;
      for (std::size_t out = 0; out < d_y.columns; ++out) {
        sum += d_y[row][out] * weights[out];
        d_weights[out] += factor * d_y[row][out];
      }
      d_x[row][in] = sum;
    }
  }
  return d_x;
}

Normed layer_norm(const Matrix& x) {
  Normed normed{Matrix(x.rows, x.columns), std::vector<float>(x.rows)};
  const auto count = static_cast<float>(x.columns);
  for (std::size_t row = 0; row < x.rows; ++row) {
    float mean = 0, variance = 0;
    for (std::size_t i = 0; i < x.columns; ++i) mean += x[row][i] / count;
    for (std::size_t i = 0; i < x.columns; ++i) variance += (x[row][i] - mean) * (x[row][i] - mean) / count;
    normed.factors[row] = 1 / std::sqrt(variance + 1e-5f);
    for (std::size_t i = 0; i < x.columns; ++i) normed.y[row][i] = (x[row][i] - mean) * normed.factors[row];
  }
  return normed;
}

void layer_norm_backward(const Normed& normed, const Matrix& d_y, Matrix& d_x) {
  // The mean and the variance depend on the row, too: dx = factor (dy - mean(dy) - y mean(y dy)).
  const auto count = static_cast<float>(d_y.columns);
  for (std::size_t row = 0; row < d_y.rows; ++row) {
    float mean = 0, mean_with_y = 0;
    for (std::size_t i = 0; i < d_y.columns; ++i) {
      mean += d_y[row][i] / count;
      mean_with_y += normed.y[row][i] * d_y[row][i] / count;
    }
    for (std::size_t i = 0; i < d_y.columns; ++i) {
      d_x[row][i] += normed.factors[row] * (d_y[row][i] - mean - normed.y[row][i] * mean_with_y);
    }
  }
}

Matrix squared_relu(const Matrix& x) {
  Matrix y(x.rows, x.columns);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const float positive = std::max(x.values[i], 0.0f);
    y.values[i] = positive * positive;
  }
  return y;
}

void squared_relu_backward(const Matrix& x, Matrix& d) {
  for (std::size_t i = 0; i < x.values.size(); ++i) d.values[i] *= 2 * std::max(x.values[i], 0.0f);
}

CrossEntropy cross_entropy(const Matrix& logits, std::span<const std::uint8_t> targets) {
  CrossEntropy result{0, Matrix(logits.rows, logits.columns)};
  const auto rows = static_cast<float>(logits.rows);
  for (std::size_t row = 0; row < logits.rows; ++row) {
    const float most = *std::max_element(logits[row], logits[row] + logits.columns);
    float sum = 0;
    for (std::size_t i = 0; i < logits.columns; ++i) sum += std::exp(logits[row][i] - most);
    const std::size_t target = targets[row];
    result.loss += static_cast<double>(most + std::log(sum) - logits[row][target]) / static_cast<double>(logits.rows);
    for (std::size_t i = 0; i < logits.columns; ++i) {
      result.d_logits[row][i] = (std::exp(logits[row][i] - most) / sum - (i == target ? 1.0f : 0.0f)) / rows;
    }
  }
  return result;
}
