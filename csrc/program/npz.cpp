#include "npz.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <type_traits>

#include "checksum.h"
#include "graphweft/parallel.h"

namespace program {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error(what); }

uint64_t number(const unsigned char* at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | at[i];
  return value;
}

struct Member {
  uint64_t offset = 0, stored = 0, size = 0;
  uint32_t crc = 0;
  int method = 0;
};

}  // namespace

int64_t Array::count() const {
  int64_t elements = 1;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements))
      refuse(name + ": expected sizes that fit 64 bits");
  return elements;
}

struct Npz::File {
  std::FILE* file = nullptr;
  std::string path;
  uint64_t bytes = 0;
  std::map<std::string, Member> members;

  ~File() {
    if (file) std::fclose(file);
  }

  void read_at(uint64_t offset, void* out, uint64_t count) const {
    if (offset > bytes || count > bytes - offset || fseeko(file, off_t(offset), SEEK_SET) != 0 ||
        std::fread(out, 1, count, file) != count)
      refuse(path + ": expected a whole .npz archive, got a truncated one");
  }

  void read_directory();
  [[nodiscard]] const Member& member(const std::string& name) const {
    const auto found = members.find(name);
    if (found == members.end()) refuse(path + ": expected an array " + name + ", got none");
    return found->second;
  }
};

namespace {

// The bytes of a member, inflated on the way.
class Stream {
 public:
  template <class File>
  Stream(const File& file, const Member& member) : file_(file.file), path_(file.path), member_(member) {
    unsigned char local[30];
    file.read_at(member.offset, local, sizeof local);
    if (number(local, 4) != 0x04034b50) refuse(path_ + ": expected an .npz archive, got a damaged one");
    next_ = member.offset + 30 + number(local + 26, 2) + number(local + 28, 2);
    left_ = member.stored;
    if (next_ > file.bytes || left_ > file.bytes - next_) refuse(path_ + ": expected a whole .npz archive");
    if (member.method != 0 && member.method != 8) refuse(path_ + ": expected members that are stored or deflated");
    if (member.method == 0 && member.stored != member.size) refuse(path_ + ": expected sizes that agree");
    is_deflated_ = member.method == 8;
    if (is_deflated_ && inflateInit2(&state_, -MAX_WBITS) != Z_OK) refuse("zlib: cannot start");
    fseeko(file_, off_t(next_), SEEK_SET);
  }
  ~Stream() {
    if (is_deflated_) inflateEnd(&state_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // body(where a piece begins, its bytes, their number) for the next bytes; of a stored member on all threads. The
  // bytes end up in `out`, where there is one.
  void read_pieces(uint64_t count, const std::function<void(uint64_t, const void*, uint64_t)>& body, void* out) {
    constexpr uint64_t most = 1 << 16;
    const auto bytes_of = [&](uint64_t piece) { return std::min(most, count - piece * most); };
    const auto place_of = [&](uint64_t piece, unsigned char* own) {
      return out ? static_cast<unsigned char*>(out) + piece * most : own;
    };
    const uint64_t pieces = (count + most - 1) / most;
    if (is_deflated_) {
      unsigned char own[most];
      for (uint64_t piece = 0; piece < pieces; ++piece) {
        read(place_of(piece, own), bytes_of(piece));
        body(piece * most, place_of(piece, own), bytes_of(piece));
      }
      return;
    }
    if (count > left_) short_read();
    std::vector<uint32_t> sums(pieces);
    gw::parallel_chunks(int64_t(pieces), [&](int64_t chunk) {
      const auto piece = uint64_t(chunk);
      unsigned char own[most];
      unsigned char* const bytes = place_of(piece, own);
      for (uint64_t have = 0; have < bytes_of(piece);) {
        const auto got = pread(fileno(file_), bytes + have, bytes_of(piece) - have, off_t(next_ + piece * most + have));
        if (got <= 0) short_read();
        have += uint64_t(got);
      }
      sums[piece] = checksum(0, bytes, bytes_of(piece));
      body(piece * most, bytes, bytes_of(piece));
    });
    for (uint64_t piece = 0; piece < pieces; ++piece)
      crc_ = uint32_t(crc32_combine(crc_, sums[piece], z_off_t(bytes_of(piece))));
    left_ -= count, next_ += count, done_ += count;
  }

  void read(void* out, size_t count) {
    is_deflated_ ? inflate_into(static_cast<unsigned char*>(out), count) : copy_into(out, count);
    crc_ = checksum(crc_, static_cast<const unsigned char*>(out), count);
    done_ += count;
  }

  // All bytes were read: they are those that were written.
  void finish() const {
    if (done_ != member_.size || crc_ != member_.crc) refuse(path_ + ": expected the checksum of its members");
  }

 private:
  void copy_into(void* out, size_t count) {
    if (count > left_ || std::fread(out, 1, count, file_) != count) short_read();
    left_ -= count, next_ += count;
  }

  void inflate_into(unsigned char* out, size_t count) {
    while (count > 0) {
      if (state_.avail_in == 0 && left_ > 0) {
        const size_t piece = size_t(std::min<uint64_t>(left_, sizeof buffer_));
        if (std::fread(buffer_, 1, piece, file_) != piece) short_read();
        left_ -= piece;
        state_.next_in = buffer_;
        state_.avail_in = uInt(piece);
      }
      const size_t wanted = std::min(count, size_t{1} << 30);
      state_.next_out = out;
      state_.avail_out = uInt(wanted);
      const int status = inflate(&state_, Z_NO_FLUSH);
      const size_t made = wanted - state_.avail_out;
      if ((status != Z_OK && status != Z_STREAM_END) || (made == 0 && (status == Z_STREAM_END || left_ == 0)))
        short_read();
      out += made;
      count -= made;
    }
  }

  [[noreturn]] void short_read() const { refuse(path_ + ": expected a whole .npz archive, got a damaged one"); }

  std::FILE* file_;
  const std::string& path_;
  const Member& member_;
  bool is_deflated_ = false;
  uint64_t next_ = 0, left_ = 0, done_ = 0;
  uint32_t crc_ = 0;
  z_stream state_ = {};
  unsigned char buffer_[1 << 16];
};

// The text behind 'key': in the header of an array.
std::string after(const std::string& header, const std::string& key) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string::npos) refuse("npz: expected " + key + " in the header of an array");
  size_t from = at + key.size() + 3;
  while (from < header.size() && header[from] == ' ') ++from;
  return header.substr(from);
}

Array parse(const std::string& name, const std::string& header) {
  Array found;
  found.name = name;
  const std::string dtype = after(header, "descr");
  if (dtype.empty() || dtype[0] != '\'') refuse(name + ": expected numbers, got records");
  found.dtype = dtype.substr(1, dtype.find('\'', 1) - 1);
  found.fortran_order = after(header, "fortran_order").compare(0, 4, "True") == 0;
  const std::string shape = after(header, "shape");
  int64_t size = -1;
  for (size_t i = 1; i < shape.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(shape[i]))) {
      if (size > INT64_MAX / 16) refuse(name + ": expected sizes that fit 64 bits");
      size = std::max<int64_t>(size, 0) * 10 + (shape[i] - '0');
      continue;
    }
    if (size >= 0) found.shape.push_back(size);
    size = -1;
    if (shape[i] == ')') break;
  }
  return found;
}

Array read_header(Stream& stream, const std::string& name) {
  unsigned char start[12];
  stream.read(start, 10);
  if (std::memcmp(start, "\x93NUMPY", 6) != 0) refuse(name + ": expected an array of NumPy");
  uint64_t length = number(start + 8, 2);
  if (start[6] > 1) {
    stream.read(start + 10, 2);
    length = number(start + 8, 4);
  }
  if (length > 1 << 16) refuse(name + ": expected a header of a few bytes");
  std::string header(length, ' ');
  stream.read(header.data(), length);
  return parse(name, header);
}

// A number of 16 bits: sign, 5 bits of exponent, 10 of mantissa.
struct Half {
  uint16_t bits;

  template <class T>
  explicit operator T() const {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float size = std::ldexp(float(exponent ? mantissa + 1024 : mantissa), std::max(exponent, 1) - 25);
    if (exponent == 31) size = mantissa ? NAN : INFINITY;
    return T(bits >> 15 ? -size : size);
  }
};

uint64_t bytes_of(int64_t count, size_t each) {
  if (count > INT64_MAX / int64_t(each)) refuse("npz: expected sizes that fit 64 bits");
  return uint64_t(count) * each;
}

// Where numbers go: (place of the first, numbers, how many). Files have eleven types of numbers; they are widened to
// three, a few at a time, so that what is done with them is compiled three times.
template <class Wide>
using PutOf = std::function<void(int64_t, const Wide*, int64_t)>;

struct Put {
  template <class Body>
  explicit Put(const Body& body) : reals(body), integers(body), naturals(body) {}

  PutOf<double> reals;
  PutOf<int64_t> integers;
  PutOf<uint64_t> naturals;
};

template <class From, class Wide>
void convert(Stream& stream, int64_t count, const PutOf<Wide>& put) {
  constexpr uint64_t most = 512;
  const auto body = [&](uint64_t begin, const void* bytes, uint64_t many) {
    Wide wide[most];
    many /= sizeof(From), begin /= sizeof(From);
    for (uint64_t done = 0; done < many; done += most) {
      const uint64_t now = std::min(most, many - done);
      for (uint64_t i = 0; i < now; ++i) {
        From number;
        std::memcpy(static_cast<void*>(&number), static_cast<const char*>(bytes) + (done + i) * sizeof(From),
                    sizeof(From));
        wide[i] = Wide(number);
      }
      put(int64_t(begin + done), wide, int64_t(now));
    }
  };
  stream.read_pieces(bytes_of(count, sizeof(From)), body, nullptr);
}

// Whether numbers of a file lie as a program has them.
template <class T>
bool is_stored_as(const Array& array) {
  const char kind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
  return array.dtype[0] != '>' && array.dtype.substr(1) == kind + std::to_string(sizeof(T));
}

bool is_by_column(const Array& array) { return array.fortran_order && array.shape.size() > 1; }

void read_numbers(Stream& stream, const Array& array, const Put& put) {
  const int64_t count = array.count();
  const std::string kind = array.dtype.substr(1);
  if (array.dtype[0] == '>') refuse(array.name + ": expected little-endian numbers, got " + array.dtype);
  if (kind == "f2") return convert<Half, double>(stream, count, put.reals);
  if (kind == "f4") return convert<float, double>(stream, count, put.reals);
  if (kind == "f8") return convert<double, double>(stream, count, put.reals);
  if (kind == "i8") return convert<int64_t, int64_t>(stream, count, put.integers);
  if (kind == "i4") return convert<int32_t, int64_t>(stream, count, put.integers);
  if (kind == "i2") return convert<int16_t, int64_t>(stream, count, put.integers);
  if (kind == "i1") return convert<int8_t, int64_t>(stream, count, put.integers);
  if (kind == "u8") return convert<uint64_t, uint64_t>(stream, count, put.naturals);
  if (kind == "u4") return convert<uint32_t, int64_t>(stream, count, put.integers);
  if (kind == "u2") return convert<uint16_t, int64_t>(stream, count, put.integers);
  if (kind == "u1" || kind == "b1") return convert<uint8_t, int64_t>(stream, count, put.integers);
  refuse(array.name + ": expected integers or floats, got " + array.dtype);
}

}  // namespace

void Npz::File::read_directory() {
  const uint64_t tail = std::min<uint64_t>(bytes, (1 << 16) + 22);
  std::vector<unsigned char> end(tail);
  read_at(bytes - tail, end.data(), tail);
  int64_t at = int64_t(tail) - 22;
  while (at >= 0 && number(&end[size_t(at)], 4) != 0x06054b50) --at;
  if (at < 0) refuse(path + ": expected an .npz archive, got another file");
  const unsigned char* record = &end[size_t(at)];
  uint64_t entries = number(record + 10, 2), size = number(record + 12, 4), offset = number(record + 16, 4);
  if (at >= 20 && number(record - 20, 4) == 0x07064b50) {  // a ZIP64 archive
    unsigned char wide[56];
    read_at(number(record - 12, 8), wide, sizeof wide);
    entries = number(wide + 32, 8), size = number(wide + 40, 8), offset = number(wide + 48, 8);
  }
  if (size > bytes) refuse(path + ": expected an .npz archive, got a damaged one");
  std::vector<unsigned char> directory(size + 1);
  read_at(offset, directory.data(), size);
  uint64_t next = 0;
  for (uint64_t entry = 0; entry < entries; ++entry) {
    if (next + 46 > size || number(&directory[next], 4) != 0x02014b50) refuse(path + ": expected a whole directory");
    const unsigned char* one = &directory[next];
    const uint64_t name_bytes = number(one + 28, 2), extra_bytes = number(one + 30, 2);
    if (next + 46 + name_bytes + extra_bytes > size) refuse(path + ": expected a whole directory");
    Member found;
    found.method = int(number(one + 10, 2));
    found.crc = uint32_t(number(one + 16, 4));
    found.stored = number(one + 20, 4), found.size = number(one + 24, 4), found.offset = number(one + 42, 4);
    const unsigned char* extra = one + 46 + name_bytes;
    for (uint64_t i = 0; i + 4 <= extra_bytes; i += 4 + number(extra + i + 2, 2)) {
      if (number(extra + i, 2) != 1) continue;  // ZIP64: what did not fit 32 bits, in this order
      uint64_t place = i + 4;
      for (uint64_t* value : {&found.size, &found.stored, &found.offset})
        if (*value == 0xFFFFFFFFu && place + 8 <= extra_bytes) {
          *value = number(extra + place, 8);
          place += 8;
        }
    }
    std::string name(reinterpret_cast<const char*>(one + 46), name_bytes);
    if (name.size() > 4 && name.compare(name.size() - 4, 4, ".npy") == 0) name.resize(name.size() - 4);
    members[name] = found;
    next += 46 + name_bytes + extra_bytes + number(one + 32, 2);
  }
}

Npz::Npz(const std::string& path) : file_(std::make_unique<File>()) {
  file_->path = path;
  file_->file = std::fopen(path.c_str(), "rb");
  if (!file_->file || fseeko(file_->file, 0, SEEK_END) != 0) refuse(path + ": expected a readable file");
  file_->bytes = uint64_t(ftello(file_->file));
  file_->read_directory();
}

Npz::~Npz() = default;

bool Npz::has(const std::string& name) const { return file_->members.count(name) > 0; }

bool Npz::is_deflated(const std::string& name) const {
  const auto found = file_->members.find(name);
  return found != file_->members.end() && found->second.method != 0;
}

Array Npz::array(const std::string& name) const {
  Stream stream(*file_, file_->member(name));
  return read_header(stream, name);
}

template <class T>
void Npz::read(const std::string& name, T* out) const {
  Stream stream(*file_, file_->member(name));
  const Array found = read_header(stream, name);
  if (is_by_column(found)) {
    if (found.shape.size() > 2) refuse(name + ": expected at most two dimensions");
    const int64_t rows = found.shape[0], columns = found.shape[1];
    read_numbers(stream, found, Put([=](int64_t begin, const auto* numbers, int64_t many) {
                   for (int64_t i = begin; i < begin + many; ++i)
                     out[i % rows * columns + i / rows] = T(numbers[i - begin]);
                 }));
  } else if (is_stored_as<T>(found)) {
    stream.read_pieces(bytes_of(found.count(), sizeof(T)), [](uint64_t, const void*, uint64_t) {}, out);
  } else {
    read_numbers(stream, found, Put([=](int64_t begin, const auto* numbers, int64_t many) {
                   for (int64_t i = 0; i < many; ++i) out[begin + i] = T(numbers[i]);
                 }));
  }
  stream.finish();
}

bool Npz::read_below(const std::string& name, int64_t bound, const std::vector<int32_t*>& out) const {
  Stream stream(*file_, file_->member(name));
  const Array found = read_header(stream, name);
  if (is_by_column(found)) return false;
  std::atomic<bool> fits{bound <= INT32_MAX + int64_t{1}};
  const auto miss = [&] { fits.store(false, std::memory_order_relaxed); };
  Array part = found;
  part.shape = {found.count() / int64_t(out.size())};
  for (int32_t* const to : out) {
    if (is_stored_as<int32_t>(found)) {
      const auto body = [&](uint64_t begin, const void*, uint64_t many) {
        const int32_t* ids = to + begin / sizeof(int32_t);
        bool is_odd = false;  // no exit in between, so that the loop is made of vectors
        for (uint64_t i = 0; i < many / sizeof(int32_t); ++i) is_odd |= ids[i] < 0 || ids[i] >= bound;
        if (is_odd) miss();
      };
      stream.read_pieces(bytes_of(part.count(), sizeof(int32_t)), body, to);
    } else {
      read_numbers(stream, part, Put([&](int64_t begin, const auto* numbers, int64_t many) {
                     bool is_odd = false;
                     for (int64_t i = 0; i < many; ++i) {
                       const auto id = int64_t(numbers[i]);
                       is_odd |= id < 0 || id >= bound;
                       to[begin + i] = int32_t(id);
                     }
                     if (is_odd) miss();
                   }));
    }
  }
  stream.finish();
  return fits;
}

template void Npz::read(const std::string&, float*) const;
template void Npz::read(const std::string&, double*) const;
template void Npz::read(const std::string&, int32_t*) const;
template void Npz::read(const std::string&, int64_t*) const;
template void Npz::read(const std::string&, uint8_t*) const;

}  // namespace program
