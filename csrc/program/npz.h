// Arrays of an .npz archive, stored or deflated.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"

namespace program {

// One array of an archive: what its header says.
struct Array {
  std::string name;
  std::string dtype;  // "<f4"
  bool fortran_order = false;
  std::vector<int64_t> shape;

  [[nodiscard]] int64_t count() const;
};

class Npz {
 public:
  // Throws std::runtime_error with one line for anything but a sound archive.
  explicit Npz(const std::string& path);
  ~Npz();
  Npz(const Npz&) = delete;
  Npz& operator=(const Npz&) = delete;

  [[nodiscard]] bool has(const std::string& name) const;
  // Whether it is read by one thread alone; false where there is no such array.
  [[nodiscard]] bool is_deflated(const std::string& name) const;
  // The header; throws where there is no such array.
  [[nodiscard]] Array array(const std::string& name) const;
  // The numbers, converted, row by row; `out` has room for count().
  template <class T>
  void read(const std::string& name, T* out) const;
  // Ids below `bound` <= 2^31, row by row, in as many equal parts as there are in `out`; false where others are among
  // them, or columns lie side by side.
  [[nodiscard]] bool read_below(const std::string& name, int64_t bound, const std::vector<int32_t*>& out) const;
  template <class T>
  [[nodiscard]] Numbers<T> read(const std::string& name) const {
    Numbers<T> out(size_t(array(name).count()));
    read(name, out.data());
    return out;
  }

 private:
  struct File;
  std::unique_ptr<File> file_;
};

}  // namespace program
