// From the blocks of a GGUF file to packed panels, and back to floats for embeddings and tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "anchorstream/layout.h"
#include "anchorstream/memory.h"
#include "anchorstream/team.h"

namespace anchorstream {

enum class Type { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

// By GGUF's name ("Q4_K"). Throws std::invalid_argument that names the type.
Type parse_type(const std::string &name);

// Bytes of one row, which must be whole blocks; throws std::invalid_argument otherwise.
size_t row_bytes(Type type, int columns);

// One row as floats, exactly as the format defines them.
void dequantise_row(Type type, const uint8_t *row, int columns, float *out);

// How a type is packed: without loss, or as f32 if all arithmetic is to be f32.
Kind packed_kind(Type type, bool as_f32);

// Some rows of a matrix, packed in one kind. Rows are padded to whole panels with zeros.
struct Segment {
    Kind kind;
    int rows;
    int first_panel; // within the linear
    size_t panel_bytes;
    const uint8_t *data;
};

// A matrix (rows, columns) of one or more segments below one another: q, k and v, say, each in its own kind.
class Linear {
  public:
    // Adds rows below, in memory of the arena. `order` gives for each new row its row in `data`, or is null for the file's own order.
    void append(Type type, const uint8_t *data, int rows, int columns, const int64_t *order, bool as_f32, Team &team, Arena &arena);

    int rows() const { return rows_; } // padded to panels
    int columns() const { return columns_; }
    int panels() const { return rows_ / kPanelRows; }
    bool needs_quantised() const { return quantised_; }
    size_t bytes() const;

    struct Panel {
        Kind kind;
        const uint8_t *data;
    };
    Panel panel(int index) const;

    // Row `row` as floats.
    void unpack_row(int row, float *out) const;

  private:
    std::vector<Segment> segments_;
    int rows_ = 0, columns_ = 0;
    bool quantised_ = false;
};

} // namespace anchorstream
