// MPI in C, without the C++ bindings of old, which compilers warn of.
#pragma once

#define MPICH_SKIP_MPICXX 1
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
