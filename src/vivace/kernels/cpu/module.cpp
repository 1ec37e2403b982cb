// The Python module `_native`: every tensor is checked here, then the interpreter lock is released.
#include "module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "ceilings.h"

namespace vivace {
namespace {

double multiply_add(Kernels& kernels, int64_t rounds) {
    nb::gil_scoped_release unlocked;
    return kernels.multiply_add(rounds);
}

double byte_dots(Kernels& kernels, int64_t rounds) {
    nb::gil_scoped_release unlocked;
    return kernels.byte_dots(rounds);
}

void read_memory(Kernels& kernels, const Array& x) {
    const float* x_data = floats(x, "x", {kAny});
    nb::gil_scoped_release unlocked;
    kernels.read_memory(x_data, size_of(x, 0));
}

void run(KeptTape& kept, int64_t rows, int64_t chosen, int64_t sequences) {
    nb::gil_scoped_release unlocked;
    kept.tape.run(rows, chosen, sequences);
}

std::vector<int64_t> run_timed(KeptTape& kept, int64_t rows, int64_t chosen, int64_t sequences) {
    nb::gil_scoped_release unlocked;
    return kept.tape.run_timed(rows, chosen, sequences);
}

}  // namespace
}  // namespace vivace

NB_MODULE(_native, m) {
    using namespace vivace;
    // Kernels that a running engine still holds when the process ends are no leak, and no business of its user.
    nb::set_leak_warnings(false);
    m.doc() = "Native CPU kernels. The menu and its equations are in vivace.kernels.ops.";
    m.def("supported_isas", &supported_isas, "Instruction sets of this machine that were built in, the best first.");
    m.def("byte_dots_by", [] { return best_byte_dots().instruction; }, "What byte_dots measures.");
    Classes classes{nb::class_<Kernels>(m, "Kernels"), nb::class_<KeptTape>(m, "Tape")};
    classes.kernels.def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("threads"))
        .def_prop_ro("isa", &Kernels::isa)
        .def_prop_ro("threads", &Kernels::threads)
        .def("multiply_add", &multiply_add, nb::arg("rounds"), "Operations done: the processor's ceiling, to be timed.")
        .def("byte_dots", &byte_dots, nb::arg("rounds"), "Operations done on bytes: the integer ceiling, to be timed.")
        .def("read_memory", &read_memory, nb::arg("x"), "Reads x once: the memory's ceiling, to be timed.");
    classes.tape.def(nb::init<Kernels&>(), nb::arg("kernels"), nb::keep_alive<1, 2>())
        .def("__len__", [](const KeptTape& kept) { return kept.tape.size(); })
        .def("run", &run, nb::arg("rows"), nb::arg("chosen"), nb::arg("sequences"))
        .def("run_timed", &run_timed, nb::arg("rows"), nb::arg("chosen"), nb::arg("sequences"),
             "Like run; nanoseconds of each operation.");
    add_rows(classes);
    add_attention(classes);
    add_kv(classes);
    add_quant(m, classes);
    add_experts(m, classes);
}
