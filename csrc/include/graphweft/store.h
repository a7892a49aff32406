// A reader of stores on disk, as `graphweft prepare` writes them: the manifest, and the arrays of a part as memory
// maps.
//
//   gw::store store("folder");
//   const gw::mapped_part part = store.part(0);
//   const float *x = part.values<float>("x");
//
// It needs the headers alone, on POSIX systems of little-endian machines. Nodes are numbered part after part; `indices`
// are numbers in the whole store. Every failure is a std::runtime_error of one line. Versions 1 and 2 of the format.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "graphweft/json.h"

namespace gw {

struct store_block {
  std::string name, dtype;  // dtype: uint8, int32, int64, float32, float16, bfloat16
  std::vector<int64_t> shape;
  int64_t offset = 0, nbytes = 0;
  uint32_t crc32 = 0;
};

struct store_part {
  std::string file;
  int64_t nodes = 0, edges = 0, first = 0;  // first: number of its first node in the store
  std::vector<int64_t> types;               // nodes of each type, of a typed graph
  std::vector<store_block> blocks;
};

// CRC-32 of zlib, of bytes that follow those that gave `crc`.
inline uint32_t crc32_of(const unsigned char* bytes, int64_t count, uint32_t crc = 0) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t entry = i;
      for (int bit = 0; bit < 8; ++bit) entry = (entry >> 1) ^ ((entry & 1) != 0 ? 0xedb88320u : 0u);
      made[i] = entry;
    }
    return made;
  }();
  crc = ~crc;
  for (int64_t i = 0; i < count; ++i) crc = table[(crc ^ bytes[i]) & 0xff] ^ (crc >> 8);
  return ~crc;
}

inline int64_t bytes_of_dtype(const std::string& dtype) {
  if (dtype == "uint8") return 1;
  if (dtype == "float16" || dtype == "bfloat16") return 2;
  if (dtype == "int32" || dtype == "float32") return 4;
  if (dtype == "int64") return 8;
  throw std::runtime_error("dtype: expected one of a store, got " + dtype);
}

template <class T>
bool is_dtype(const std::string& dtype);
template <>
inline bool is_dtype<float>(const std::string& dtype) {
  return dtype == "float32";
}
template <>
inline bool is_dtype<int64_t>(const std::string& dtype) {
  return dtype == "int64";
}
template <>
inline bool is_dtype<int32_t>(const std::string& dtype) {
  return dtype == "int32";
}
template <>
inline bool is_dtype<uint8_t>(const std::string& dtype) {
  return dtype == "uint8";
}
template <>
inline bool is_dtype<uint16_t>(const std::string& dtype) {  // the bits of floats of 16 bits
  return dtype == "float16" || dtype == "bfloat16";
}

// The file of a part as a memory map, for as long as this lives.
class mapped_part {
 public:
  mapped_part(const std::string& path, const store_part& entry) : path_(path), entry_(entry) {
    const int handle = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (handle < 0) throw std::runtime_error(path + ": expected the file of a part, got: " + std::strerror(errno));
    struct stat found{};
    const bool is_known = fstat(handle, &found) == 0;
    size_ = is_known ? static_cast<int64_t>(found.st_size) : 0;
    void* pages = size_ > 0 ? mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, handle, 0) : nullptr;
    close(handle);
    if (!is_known || pages == MAP_FAILED) throw std::runtime_error(path + ": expected a file that can be mapped");
    pages_ = static_cast<const unsigned char*>(pages);
    for (const store_block& block : entry_.blocks)
      if (block.offset + block.nbytes > size_) {
        const std::string end = std::to_string(block.offset + block.nbytes);
        unmap();
        throw std::runtime_error(path + ": expected block " + block.name + " up to byte " + end + ", got a file of " +
                                 std::to_string(size_) + "; it is truncated");
      }
  }
  mapped_part(const mapped_part&) = delete;
  mapped_part& operator=(const mapped_part&) = delete;
  mapped_part(mapped_part&& other) noexcept
      : path_(std::move(other.path_)),
        entry_(std::move(other.entry_)),
        size_(other.size_),
        pages_(std::exchange(other.pages_, nullptr)) {}
  ~mapped_part() { unmap(); }

  const store_part& entry() const { return entry_; }

  bool has(const std::string& name) const {
    for (const store_block& block : entry_.blocks)
      if (block.name == name) return true;
    return false;
  }

  const store_block& block(const std::string& name) const {
    for (const store_block& block : entry_.blocks)
      if (block.name == name) return block;
    throw std::runtime_error(path_ + ": expected a block " + name + ", got none");
  }

  const unsigned char* bytes(const std::string& name) const { return pages_ + block(name).offset; }

  template <class T>
  const T* values(const std::string& name) const {
    const store_block& found = block(name);
    if (!is_dtype<T>(found.dtype))
      throw std::runtime_error(path_ + ": expected block " + name + " of another type, got " + found.dtype);
    return reinterpret_cast<const T*>(pages_ + found.offset);
  }

  // Number in the store of the source of an in-edge, by its place among those of this part.
  int64_t source(int64_t place) const {
    const store_block& found = block("indices");
    const unsigned char* at = pages_ + found.offset;
    return found.dtype == "int32" ? reinterpret_cast<const int32_t*>(at)[place]
                                  : reinterpret_cast<const int64_t*>(at)[place];
  }

  // Compares the checksums of all blocks, which reads the file.
  void verify() const {
    for (const store_block& block : entry_.blocks)
      if (crc32_of(pages_ + block.offset, block.nbytes) != block.crc32)
        throw std::runtime_error(path_ + ": block " + block.name + " at byte " + std::to_string(block.offset) +
                                 " differs from its checksum; the file is damaged");
  }

 private:
  void unmap() {
    if (pages_ != nullptr) munmap(const_cast<unsigned char*>(pages_), static_cast<size_t>(size_));
    pages_ = nullptr;
  }

  std::string path_;
  store_part entry_;
  int64_t size_ = 0;
  const unsigned char* pages_ = nullptr;
};

class store {
 public:
  explicit store(std::string folder) : folder_(std::move(folder)) {
    const std::string path = folder_ + "/manifest.json";
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(folder_ + ": expected a store with manifest.json, got none");
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const json_value held = json_reader(text, path).whole();
    if (word(held, "format", path) != "graphweft-store")
      throw std::runtime_error(path + ": expected a store's manifest");
    version = count(held, "version", path);
    if (version < 1 || version > 2)
      throw std::runtime_error(path + ": expected version 1 or 2 of the format, got " + std::to_string(version));
    name = word(held, "name", path);
    num_nodes = count(held, "num_nodes", path);
    num_edges = count(held, "num_edges", path);
    num_classes = count(held, "num_classes", path);
    num_features = count(field(held, "shape", json_value::kind::object, path), "num_features", path);
    int64_t nodes = 0, edges = 0;
    for (const json_value& part : field(held, "parts", json_value::kind::list, path).items) {
      parts.push_back(part_of(part, path));
      parts.back().first = nodes;
      nodes += parts.back().nodes;
      edges += parts.back().edges;
    }
    if (nodes != num_nodes || edges != num_edges)
      throw std::runtime_error(path + ": expected parts of " + std::to_string(num_nodes) + " nodes and " +
                               std::to_string(num_edges) + " edges in all, got " + std::to_string(nodes) + " and " +
                               std::to_string(edges));
  }

  mapped_part part(int64_t number) const {
    if (number < 0 || number >= static_cast<int64_t>(parts.size()))
      throw std::runtime_error(folder_ + ": expected a part in [0, " + std::to_string(parts.size()) + "), got " +
                               std::to_string(number));
    const store_part& entry = parts[static_cast<size_t>(number)];
    return mapped_part(folder_ + "/" + entry.file, entry);
  }

  int64_t version = 0, num_nodes = 0, num_edges = 0, num_classes = 0, num_features = 0;
  std::string name;
  std::vector<store_part> parts;

 private:
  static const json_value& field(const json_value& held, const std::string& name, json_value::kind kind,
                                 const std::string& who) {
    const auto found = held.fields.find(name);
    if (found == held.fields.end() || found->second.type != kind)
      throw std::runtime_error(who + ": expected the field " + name + " of its kind, got another or none");
    return found->second;
  }

  static int64_t count(const json_value& held, const std::string& name, const std::string& who) {
    const int64_t found = field(held, name, json_value::kind::integer, who).number;
    if (found < 0) throw std::runtime_error(who + ": expected " + name + " >= 0, got " + std::to_string(found));
    return found;
  }

  static std::string word(const json_value& held, const std::string& name, const std::string& who) {
    return field(held, name, json_value::kind::text, who).text;
  }

  static store_part part_of(const json_value& held, const std::string& who) {
    store_part found;
    found.file = word(held, "file", who);
    if (found.file.empty() || found.file[0] == '.' || found.file.find('/') != std::string::npos)
      throw std::runtime_error(who + ": expected a file in the folder of the store, got " + found.file);
    found.nodes = count(held, "nodes", who);
    found.edges = count(held, "edges", who);
    if (held.fields.count("types") != 0)
      for (const json_value& one : field(held, "types", json_value::kind::list, who).items)
        found.types.push_back(one.number);
    for (const json_value& one : field(held, "blocks", json_value::kind::list, who).items)
      found.blocks.push_back(block_of(one, found, who));
    return found;
  }

  static store_block block_of(const json_value& held, const store_part& part, const std::string& who) {
    store_block found;
    found.name = word(held, "name", who);
    found.dtype = word(held, "dtype", who);
    found.offset = count(held, "offset", who);
    found.crc32 = static_cast<uint32_t>(count(held, "crc32", who));
    found.nbytes = bytes_of_dtype(found.dtype);
    for (const json_value& size : field(held, "shape", json_value::kind::list, who).items) {
      if (size.type != json_value::kind::integer || size.number < 0 ||
          (size.number > 0 && found.nbytes > (INT64_MAX >> 1) / size.number))
        throw std::runtime_error(who + ": expected the shape of block " + found.name + " as counts, got others");
      found.shape.push_back(size.number);
      found.nbytes *= size.number;
    }
    const bool is_edge = found.name == "indices" || found.name == "relations" || found.name == "weights";
    const int64_t rows = is_edge ? part.edges : part.nodes + (found.name == "indptr" ? 1 : 0);
    const bool is_typed = found.name.rfind("x.", 0) == 0;
    if (found.shape.empty() || (!is_typed && found.shape[0] != rows) || found.offset % 4096 != 0 ||
        found.offset > (INT64_MAX >> 1))
      throw std::runtime_error(who + ": expected block " + found.name + " of " + std::to_string(rows) +
                               " rows at a multiple of 4096, got another");
    return found;
  }

  std::string folder_;
};

}  // namespace gw
