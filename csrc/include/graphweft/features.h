// Sparse node features: compression of dense rows, canonical form, row sums. Rows are nodes, columns features.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "graphweft/csr.h"

namespace gw {

// Rows per chunk so that a chunk has about 64 Ki elements.
inline int64_t dense_grain(int64_t width) {
  return std::max<int64_t>(1, (int64_t{1} << 16) / std::max<int64_t>(width, 1));
}

// Non-zero elements per row into counts[row]; one pass. A NaN is not zero.
template <class T>
void count_nonzero(const T* x, int64_t rows, int64_t width, int64_t ld, int64_t* counts) {
  parallel_ranges(rows, dense_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t count = 0;
      for (int64_t block = 0; block < width; block += 4096) {  // 32-bit counts vectorise
        int32_t part = 0;
        for (int64_t k = block; k < std::min(width, block + 4096); ++k) part += x[row * ld + k] != T(0);
        count += part;
      }
      counts[row] = count;
    }
  });
}

template <class I, class T>
void compress_dense(const T* x, int64_t rows, int64_t width, int64_t ld, const int64_t* indptr, I* indices, T* values) {
  parallel_ranges(rows, dense_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t to = indptr[row];
      for (int64_t k = 0; k < width; ++k) {
        if (x[row * ld + k] == T(0)) continue;
        indices[to] = I(k);
        values[to++] = x[row * ld + k];
      }
    }
  });
}

// Adds the entries to `out`, which holds zeros.
template <class I, class T>
void expand_dense(const csr_view<I>& a, const T* values, int64_t ld, T* out) {
  parallel_ranges(a.num_rows, dense_grain(a.num_cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t p = a.indptr[row]; p < a.indptr[row + 1]; ++p) out[row * ld + a.indices[p]] += values[p];
  });
}

// Throws with the first position of an infinity or a NaN.
template <class T>
void require_finite(const T* values, int64_t n) {
  constexpr int64_t grain = int64_t{1} << 16;
  std::vector<uint8_t> bad(size_t((n + grain - 1) / grain), 0);
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    // Bits without the sign ascend with the size, and those of infinities and NaNs are above all others.
    using bits = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
    bits most = 0;
    for (int64_t p = begin; p < end; ++p) {
      bits one;
      std::memcpy(&one, values + p, sizeof one);
      most = std::max<bits>(most, one & std::numeric_limits<bits>::max());
    }
    T largest;
    std::memcpy(&largest, &most, sizeof largest);
    bad[size_t(begin / grain)] = !std::isfinite(largest);
  });
  for (size_t chunk = 0; chunk < bad.size(); ++chunk) {
    if (!bad[chunk]) continue;
    for (int64_t p = int64_t(chunk) * grain; p < n; ++p)
      if (!std::isfinite(values[p]))
        throw error(bad_argument, std::string("expected finite values, got ") +
                                      (std::isnan(values[p]) ? "nan"
                                       : values[p] > 0       ? "inf"
                                                             : "-inf") +
                                      " at position " + std::to_string(p));
  }
}

// Equal columns of a row added up in their order, zeros left out; columns ascend in `a`. First call: out_indices null,
// counts per row into out_indptr[row]; second call: out_indptr holds offsets.
template <class I, class T>
void merge_equal(const csr_view<I>& a, const T* values, int64_t* out_indptr, I* out_indices, T* out_values) {
  parallel_ranges(a.num_rows, 2048, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t to = out_indices ? out_indptr[row] : 0;
      for (int64_t p = a.indptr[row]; p < a.indptr[row + 1];) {
        const I col = a.indices[p];
        T sum = values[p++];
        while (p < a.indptr[row + 1] && a.indices[p] == col) sum += values[p++];
        if (sum == T(0)) continue;
        if (out_indices) {
          out_indices[to] = col;
          out_values[to] = sum;
        }
        ++to;
      }
      if (!out_indices) out_indptr[row] = to;
    }
  });
}

// A row divided by the sum of its absolute values, taken in double precision; a row of zeros stays. Zeros between the
// others change no bit: dense rows and compressed ones give the same.
template <class T>
void normalize_row(const T* values, int64_t count, T* out) {
  double sum = 0;
  for (int64_t p = 0; p < count; ++p) sum += std::fabs(double(values[p]));
  const double scale = sum == 0 ? 1 : 1 / sum;
  for (int64_t p = 0; p < count; ++p) out[p] = T(double(values[p]) * scale);
}

template <class I, class T>
void normalize_rows(const csr_view<I>& a, const T* values, T* out) {
  parallel_ranges(a.num_rows, 2048, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = a.indptr[row];
      normalize_row(values + first, a.indptr[row + 1] - first, out + first);
    }
  });
}

// Of x [rows, width], ld elements between rows; out has none between them and may be x.
template <class T>
void normalize_dense_rows(const T* x, int64_t rows, int64_t width, int64_t ld, T* out) {
  parallel_ranges(rows, 256, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) normalize_row(x + row * ld, width, out + row * width);
  });
}

}  // namespace gw
