#include "graph.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "graphweft/parallel.h"
#include "kernels.h"

extern "C" {
GW_API int gw_ids_summary(int32_t wide, int64_t n, const void* ids, int64_t* low, int64_t* high, int32_t* ascending);
GW_API int gw_coo_to_csr(int32_t wide_in, int64_t num_edges, const void* rows, const void* cols, int64_t num_rows,
                         int64_t num_cols, int32_t wide_out, int64_t* indptr, void* indices, void* edge_ids);
GW_API int gw_csr_transpose(const gw_adjacency* a, int32_t payload_bytes, const void* payload_in, int64_t* indptr,
                            void* indices, void* payload);
GW_API int gw_csr_check(const gw_adjacency* a);
GW_API int gw_csr_has_loops(const gw_adjacency* a, int32_t* out);
GW_API int gw_csr_is_symmetric(const gw_adjacency* a, int32_t* out);
GW_API int gw_csr_columns_ascend(const gw_adjacency* a, int32_t strict, int32_t* out);
GW_API int gw_csr_count_columns(const gw_adjacency* a, int64_t* counts);
GW_API int gw_csr_clear_loops(const gw_adjacency* a, uint8_t* member);
GW_API int gw_csr_filter(const gw_adjacency* a, const uint8_t* member, int64_t* indptr, void* indices, void* edge_ids);
GW_API int gw_csr_concat(const gw_adjacency* a, const gw_adjacency* b, const int64_t* indptr, void* indices,
                         void* edge_ids);
}

namespace program {

struct Graph::Forms {
  Form by[2];     // by destination, by source
  Form loose[2];  // the same where nobody asked for edge numbers
  Form side_by_side[2];
  std::optional<bool> symmetric, loops;
  bool numbered = true;
  std::shared_ptr<Forms> no_loops;
};

gw_adjacency Compressed::native() const {
  return {num_rows(),
          num_cols,
          num_edges(),
          indptr.data(),
          indices.empty() ? nullptr : indices.data(),
          edge_ids.empty() ? nullptr : edge_ids.data(),
          0,
          stretches ? &stretches->native : nullptr};
}

Form transposed(const Compressed& a, bool with_edge_ids) {
  auto turned = std::make_shared<Compressed>();
  turned->num_cols = a.num_rows();
  turned->indptr.resize(size_t(a.num_cols) + 1);
  turned->indices.resize(a.indices.size());
  if (with_edge_ids) turned->edge_ids.resize(a.indices.size());
  const gw_adjacency from = a.native();
  check(gw_csr_transpose(&from, 0, nullptr, turned->indptr.data(), turned->indices.data(),
                         with_edge_ids ? turned->edge_ids.data() : nullptr));
  return turned;
}

bool columns_ascend(const Compressed& a) {
  int32_t answer = 0;
  const gw_adjacency native = a.native();
  check(gw_csr_columns_ascend(&native, 0, &answer));
  return answer != 0;
}

Graph::Graph(Form by_dst, Form by_src, int64_t num_src, int64_t num_dst, bool square, bool numbered)
    : forms_(std::make_shared<Forms>()), num_src_(num_src), num_dst_(num_dst), square_(square) {
  forms_->by[0] = std::move(by_dst);
  forms_->by[1] = std::move(by_src);
  forms_->numbered = numbered;
}

Graph Graph::from_edges(Numbers<int32_t> src, Numbers<int32_t> dst, int64_t num_nodes, bool numbered) {
  const auto num_edges = int64_t(dst.size());
  int64_t low = 0, high = 0;
  int32_t ascending = 1;
  if (num_edges > 0) check(gw_ids_summary(0, num_edges, dst.data(), &low, &high, &ascending));
  auto made = std::make_shared<Compressed>();
  made->num_cols = num_nodes;
  made->indptr.resize(size_t(num_nodes) + 1);
  // Edges that come by destination stay where they are, and each has the number of its place.
  Numbers<int32_t>& columns = ascending ? src : made->indices;
  columns.resize(size_t(num_edges));
  if (numbered && !ascending) made->edge_ids.resize(size_t(num_edges));
  check(gw_coo_to_csr(0, num_edges, dst.data(), src.data(), num_nodes, num_nodes, 0, made->indptr.data(),
                      columns.data(), made->edge_ids.empty() ? nullptr : made->edge_ids.data()));
  if (ascending) made->indices = std::move(src);
  return {made, nullptr, num_nodes, num_nodes, true, numbered};
}

Graph Graph::from_csr(Numbers<int64_t> indptr, Numbers<int32_t> indices, bool numbered) {
  auto made = std::make_shared<Compressed>();
  made->indptr = std::move(indptr);
  made->indices = std::move(indices);
  const int64_t nodes = made->num_cols = made->num_rows();
  const gw_adjacency native = made->native();
  check(gw_csr_check(&native));
  return {nullptr, made, nodes, nodes, true, numbered};
}

Graph Graph::from_in_edges(Form in_edges) {
  const int64_t nodes = in_edges->num_rows();
  return {std::move(in_edges), nullptr, nodes, nodes, true, true};
}

Form Graph::known() const { return forms_->by[0] ? forms_->by[0] : forms_->by[1]; }

Form Graph::full(int side) const {
  Form& form = forms_->by[side];
  if (form) return form;
  const Form& other = forms_->by[1 - side];
  // Without numbers a symmetric graph is its own transpose. A loose form stays: somebody may read it.
  const bool same = square_ && !forms_->numbered && columns_ascend(*other) && is_symmetric();
  return form = same ? other : transposed(*other, forms_->numbered);
}

bool Graph::is_symmetric() const {
  if (!forms_->symmetric) {
    int32_t answer = 0;
    const gw_adjacency native = known()->native();
    if (square_) check(gw_csr_is_symmetric(&native, &answer));
    forms_->symmetric = answer != 0;
  }
  return *forms_->symmetric;
}

int64_t Graph::num_edges() const { return known()->num_edges(); }

Graph Graph::reverse() const {
  Graph turned = *this;
  turned.side_ = 1 - side_;
  std::swap(turned.num_src_, turned.num_dst_);
  return turned;
}

Graph Graph::without_loops() const {
  if (!forms_->loops) {
    int32_t found = 0;
    const gw_adjacency any = known()->native();
    check(gw_csr_has_loops(&any, &found));
    forms_->loops = found != 0;
  }
  if (!*forms_->loops) return *this;
  if (!forms_->no_loops) {
    const Form all = full(side_);
    const gw_adjacency native = all->native();
    std::vector<uint8_t> member(size_t(all->num_edges()), 1);
    check(gw_csr_clear_loops(&native, member.data()));
    auto kept = std::make_shared<Compressed>();
    kept->num_cols = all->num_cols;
    kept->indptr.assign(all->indptr.size(), 0);
    check(gw_csr_filter(&native, member.data(), kept->indptr.data() + 1, nullptr, nullptr));
    std::partial_sum(kept->indptr.begin(), kept->indptr.end(), kept->indptr.begin());
    kept->indices.resize(size_t(kept->indptr.back()));
    if (!all->edge_ids.empty()) kept->edge_ids.resize(kept->indices.size());
    check(gw_csr_filter(&native, member.data(), kept->indptr.data(), kept->indices.data(),
                        kept->edge_ids.empty() ? nullptr : kept->edge_ids.data()));
    forms_->no_loops = Graph(kept, nullptr, num_src_, num_dst_, square_, forms_->numbered).forms_;
    forms_->no_loops->loops = false;
    forms_->no_loops->symmetric = forms_->symmetric;  // loops are on the diagonal
  }
  Graph bare = *this;
  bare.forms_ = forms_->no_loops;
  bare.side_ = 0;
  return bare;
}

Graph Graph::one_loop() const {
  const Graph bare = without_loops();
  const Form others = bare.full(bare.side_);
  Compressed own;
  own.num_cols = num_dst_;
  own.indptr.resize(size_t(num_dst_) + 1);
  std::iota(own.indptr.begin(), own.indptr.end(), int64_t{0});
  own.indices.resize(size_t(num_dst_));
  std::iota(own.indices.begin(), own.indices.end(), 0);
  auto made = std::make_shared<Compressed>();
  made->num_cols = num_dst_;
  made->indptr.resize(own.indptr.size());
  for (size_t row = 0; row < own.indptr.size(); ++row) made->indptr[row] = others->indptr[row] + own.indptr[row];
  made->indices.resize(others->indices.size() + own.indices.size());
  if (forms_->numbered) made->edge_ids.resize(made->indices.size());
  const gw_adjacency first = others->native(), second = own.native();
  check(gw_csr_concat(&first, &second, made->indptr.data(), made->indices.data(),
                      forms_->numbered ? made->edge_ids.data() : nullptr));
  return {made, nullptr, num_src_, num_dst_, square_, forms_->numbered};
}

Graph Graph::take_dst(const Numbers<int64_t>& rows, bool loops) const {
  const Form all = full(side_);
  auto taken = std::make_shared<Compressed>();
  taken->num_cols = all->num_cols;
  taken->indptr.assign(1, 0);
  taken->indptr.reserve(rows.size() + 1);
  for (const int64_t row : rows)
    taken->indptr.push_back(taken->indptr.back() + all->indptr[size_t(row) + 1] - all->indptr[size_t(row)] + loops);
  taken->indices.resize(size_t(taken->indptr.back()));
  gw::parallel_ranges(int64_t(rows.size()), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = rows[size_t(i)], first = all->indptr[size_t(row)];
      const int64_t count = all->indptr[size_t(row) + 1] - first;
      int32_t* to = taken->indices.data() + taken->indptr[size_t(i)];
      std::copy_n(all->indices.data() + first, count, to);
      if (loops) to[count] = int32_t(row);
    }
  });
  return {taken, nullptr, num_src_, int64_t(rows.size()), false, forms_->numbered};
}

void Graph::in_degrees(float* out) const {
  if (const Form& form = forms_->by[side_] ? forms_->by[side_] : forms_->loose[side_]) {
    for (int64_t row = 0; row < form->num_rows(); ++row)
      out[row] = float(form->indptr[size_t(row) + 1] - form->indptr[size_t(row)]);
    return;
  }
  Numbers<int64_t> counts(size_t(num_dst_), 0);
  const gw_adjacency other = full(1 - side_)->native();
  check(gw_csr_count_columns(&other, counts.data()));
  for (size_t row = 0; row < counts.size(); ++row) out[row] = float(counts[row]);
}

Form Graph::summed() const {
  Form form = forms_->by[side_] ? forms_->by[side_] : forms_->loose[side_];
  if (!form) {
    const Form other = known();
    form = is_symmetric() ? other : transposed(*other, false);
    forms_->loose[side_] = form;
  }
  return form;
}

gw_adjacency Graph::in_edges() const {
  const Form form = summed();
  form->is_read = true;
  gw_adjacency native = form->native();
  native.edge_ids = nullptr;
  return native;
}

gw_adjacency Graph::in_edges_in_order() const {
  const Form form = full(side_);
  form->is_read = true;
  return form->native();
}

gw_adjacency Graph::out_edges_side_by_side() const {
  Form& form = forms_->side_by_side[1 - side_];
  if (!form) {
    form = full(1 - side_);
    if (!columns_ascend(*form)) form = transposed(*transposed(*form, true), true);
  }
  form->is_read = true;
  return form->native();
}

void Graph::drop_unread() const {
  for (const auto* forms : {&forms_->by, &forms_->loose, &forms_->side_by_side})
    for (const Form& form : *forms)
      if (form && !form->is_read) {
        form->is_dropped = true;
        Numbers<int32_t>().swap(form->indices);
        Numbers<int32_t>().swap(form->edge_ids);
      }
}

}  // namespace program
