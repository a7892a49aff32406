// Arrays of a file as a program reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "npz.h"

namespace program {

// Throws where a size is not the one that the program was written for.
void require_size(const char* what, int64_t expected, int64_t got);
// Ids in [0, bound).
Numbers<int32_t> read_ids(const Npz& file, const std::string& name, int64_t bound);
// The same of a matrix of so many rows, each by itself.
std::vector<Numbers<int32_t>> read_id_rows(const Npz& file, const std::string& name, int64_t rows, int64_t bound);
// Class ids, -1 for none; floats that are whole numbers count.
Numbers<int64_t> read_labels(const Npz& file, int64_t nodes, int64_t classes);
// Several labels or numbers a node: float32 [nodes, columns], those that are not known not a number. Several labels are
// 0 or 1, as rows or as compressed rows of those that are 1.
Numbers<float> read_entries(const Npz& file, int64_t nodes, int64_t columns, bool are_labels);
// Those of the listed rows that are known.
int64_t known_entries(const Numbers<float>& entries, const Numbers<int64_t>& rows, int64_t columns);
// The rows where a mask is set and a label is known; of several splits the first.
Numbers<int64_t> read_split(const Npz& file, const std::string& name, const std::vector<bool>& is_known);

}  // namespace program
