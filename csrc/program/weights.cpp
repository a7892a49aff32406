#include "weights.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>

namespace program {

namespace {

struct closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, closer>;

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ",") + std::to_string(size);
  return "[" + text + "]";
}

// What the header says of one tensor.
struct Entry {
  std::string dtype, shape;
  uint64_t begin = 0, end = 0;
};

// The header's JSON: objects of texts, numbers and lists of numbers, at most two deep.
class Header {
 public:
  Header(const std::string& path, std::string text) : path_(path), text_(std::move(text)) {
    expect('{');
    while (!taken('}')) {
      const std::string name = quoted();
      expect(':');
      name == "__metadata__" ? read_metadata() : read_entry(entries[name]);
      (void)taken(',');
    }
  }

  std::map<std::string, Entry> entries;
  std::map<std::string, std::string> metadata;

 private:
  void read_metadata() {
    expect('{');
    while (!taken('}')) {
      const std::string name = quoted();
      expect(':');
      metadata[name] = quoted();
      (void)taken(',');
    }
  }

  void read_entry(Entry& entry) {
    expect('{');
    while (!taken('}')) {
      const std::string name = quoted();
      expect(':');
      if (name == "dtype") {
        entry.dtype = quoted();
      } else {
        const std::vector<int64_t> found = numbers();
        if (name == "shape") entry.shape = text_of(found);
        if (name == "data_offsets" && found.size() == 2)
          entry.begin = uint64_t(found[0]), entry.end = uint64_t(found[1]);
      }
      (void)taken(',');
    }
  }

  std::vector<int64_t> numbers() {
    std::vector<int64_t> found;
    expect('[');
    while (!taken(']')) {
      skip();
      int64_t value = 0;
      const size_t from = at_;
      while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) && at_ - from < 18)
        value = value * 10 + (text_[at_++] - '0');
      if (at_ == from) damaged();
      found.push_back(value);
      (void)taken(',');
    }
    return found;
  }

  std::string quoted() {
    expect('"');
    std::string found;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\') ++at_;
      if (at_ < text_.size()) found += text_[at_++];
    }
    expect('"');
    return found;
  }

  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool taken(char wanted) {
    skip();
    if (at_ >= text_.size()) damaged();
    if (text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!taken(wanted)) damaged();
  }
  [[noreturn]] void damaged() const {
    throw std::runtime_error(path_ + ": expected a safetensors file, got a damaged header");
  }

  const std::string& path_;
  std::string text_;
  size_t at_ = 0;
};

}  // namespace

size_t Tensor::bytes() const {
  size_t elements = 1;
  for (const int64_t size : shape) elements *= size_t(size);
  return elements * (counts ? sizeof(int64_t) : sizeof(float));
}

void save_weights(const std::string& path, const std::vector<Tensor>& tensors, int64_t epochs) {
  std::string header = "{\"__metadata__\":{\"epochs\":\"" + std::to_string(epochs) + "\"}";
  int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t end = offset + int64_t(tensor.bytes());
    header += ",\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype() + "\",\"shape\":" + text_of(tensor.shape) +
              ",\"data_offsets\":" + text_of({offset, end}) + "}";
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string fresh = path + ".tmp";
  bool is_written = false;
  if (const File file{std::fopen(fresh.c_str(), "wb")}) {
    const uint64_t length = header.size();
    is_written = std::fwrite(&length, 8, 1, file.get()) == 1 &&
                 std::fwrite(header.data(), 1, header.size(), file.get()) == header.size();
    for (const Tensor& tensor : tensors)
      is_written = is_written && std::fwrite(tensor.at, 1, tensor.bytes(), file.get()) == tensor.bytes();
    is_written = is_written && std::fflush(file.get()) == 0;
  }
  if (!is_written || std::rename(fresh.c_str(), path.c_str()) != 0)
    throw std::runtime_error(path + ": cannot be written");
}

int64_t load_weights(const std::string& path, const std::vector<Tensor>& required,
                     const std::vector<Tensor>& optional) {
  const File file{std::fopen(path.c_str(), "rb")};
  uint64_t length = 0;
  if (!file || std::fread(&length, 8, 1, file.get()) != 1 || length > 1 << 24)
    throw std::runtime_error(path + ": expected a safetensors file");
  std::string text(length, ' ');
  if (std::fread(text.data(), 1, length, file.get()) != length)
    throw std::runtime_error(path + ": expected a whole safetensors file");
  const Header header(path, std::move(text));
  const auto fill = [&](const Tensor& tensor, bool is_required) {
    const auto found = header.entries.find(tensor.name);
    if (found == header.entries.end()) {
      if (is_required) throw OtherTensors(path + ": expected a tensor " + tensor.name + ", got none");
      return;
    }
    const Entry& entry = found->second;
    const std::string wanted = text_of(tensor.shape);
    if (entry.dtype != tensor.dtype() || entry.shape != wanted)
      throw OtherTensors(tensor.name + ": expected " + tensor.dtype() + " of shape " + wanted + ", got " + entry.dtype +
                         " of shape " + entry.shape);
    const size_t bytes = tensor.bytes();
    if (entry.end - entry.begin != bytes || fseeko(file.get(), off_t(8 + length + entry.begin), SEEK_SET) != 0 ||
        (tensor.at && std::fread(tensor.at, 1, bytes, file.get()) != bytes))
      throw std::runtime_error(path + ": expected a whole safetensors file");
  };
  for (const Tensor& tensor : required) fill(tensor, true);
  for (const Tensor& tensor : optional) fill(tensor, false);
  for (const auto& stored : header.entries) {
    const std::string& name = stored.first;
    if (name.compare(0, 10, "optimizer.") != 0 &&
        std::none_of(required.begin(), required.end(), [&](const Tensor& tensor) { return tensor.name == name; }))
      throw OtherTensors(path + ": expected the tensors of this model alone, got " + name);
  }
  const auto told = header.metadata.find("epochs");
  if (told == header.metadata.end()) return 0;
  const std::string& epochs = told->second;
  const bool is_number = !epochs.empty() && epochs.size() < 19 &&
                         std::all_of(epochs.begin(), epochs.end(), [](unsigned char c) { return std::isdigit(c); });
  if (!is_number) throw std::runtime_error(path + ": expected a number of epochs, got " + epochs);
  return std::stoll(epochs);
}

}  // namespace program
