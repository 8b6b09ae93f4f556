// The layers of a small transformer beside its attention, forward and backward by hand.
//
// A backward adds to the gradients it is given: what several readers share gets the sum of their gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// Row-major, in f32.
struct Matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<float> values;

  Matrix() = default;
  Matrix(std::size_t rows_, std::size_t columns_) : rows(rows_), columns(columns_), values(rows_ * columns_) {}
  float* operator[](std::size_t row) { return values.data() + row * columns; }
  const float* operator[](std::size_t row) const { return values.data() + row * columns; }
};

/// What training learns: a value and the loss's gradient with respect to it.
struct Parameter {
  Matrix value, gradient;

  Parameter(std::size_t rows, std::size_t columns) : value(rows, columns), gradient(rows, columns) {}
};

/// x w. x [rows, in], w [in, out].
Matrix multiply(const Matrix& x, const Matrix& w);
/// y += x w.
void multiply_add(const Matrix& x, const Matrix& w, Matrix& y);
/// Returns the gradient of x, and adds the gradient of w to w's.
Matrix multiply_backward(const Matrix& x, Parameter& w, const Matrix& d_y);

/// Rows of mean 0 and variance 1, without learned factors: y = (x - mean) / sqrt(variance + 1e-5).
struct Normed {
  Matrix y;
  std::vector<float> factors;  // of each row: 1 / sqrt(variance + 1e-5)
};
Normed layer_norm(const Matrix& x);
void layer_norm_backward(const Normed& normed, const Matrix& d_y, Matrix& d_x);

/// max(x, 0)^2. Its derivative has no jump, so that training in f32 and in double precision take the same way.
Matrix squared_relu(const Matrix& x);
/// In: the gradient of squared_relu(x). Out: that of x.
void squared_relu_backward(const Matrix& x, Matrix& d);

struct CrossEntropy {
  double loss = 0;  // the mean over rows of -ln softmax(logits)[target]
  Matrix d_logits;
};
CrossEntropy cross_entropy(const Matrix& logits, std::span<const std::uint8_t> targets);
