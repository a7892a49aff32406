// Rows from files: the entry point over row_file.h. The caller has opened the files and checked the requests.
#include "graphweft/row_file.h"

#include "graphweft/abi.h"

extern "C" {

// handles and direct [files]; file, begin, room, least, skip and width [count]; rows [count + 1]; row and place
// [rows[count]]; type: 0 float32, 1 bfloat16, 2 float16; table [any, columns] out; told [5] out: calls, bytes, the
// request that failed or -1, the bytes that it got, its errno.
GW_API int gw_read_rows_f32(const int32_t* handles, int32_t* direct, int64_t count, const int32_t* file,
                            const int64_t* begin, const int64_t* room, const int64_t* least, const int64_t* skip,
                            const int64_t* width, const int64_t* rows, const int64_t* row, const int64_t* place,
                            int32_t type, float* table, int64_t columns, int64_t threads, int64_t buffer_bytes,
                            int64_t* told) {
  return gw::guarded([&] {
    gw::require(type >= 0 && type <= 2 && columns >= 0, "gw_read_rows_f32: expected rows of a known type");
    for (int64_t r = 0; r < count; ++r)
      gw::require(room[r] <= buffer_bytes && width[r] <= columns,
                  "gw_read_rows_f32: a request is larger than a buffer");
    const gw::row_requests requests{count, file, begin, room, least, skip, width, rows, row, place};
    gw::row_reader reader(requests, gw::row_files{handles, direct}, gw::row_type(type), table, columns);
    const gw::row_outcome found = reader.run(threads, buffer_bytes);
    told[0] = found.requests, told[1] = found.bytes, told[2] = found.failed, told[3] = found.got, told[4] = found.error;
  });
}
}
