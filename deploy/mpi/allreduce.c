/* Times MPI_Allreduce and checks its result. The argument is the number of bytes of each rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define ITERATIONS 10

int main(int argc, char **argv) {
  int rank, size, wrong = 0;
  int count = (argc > 1 ? atoi(argv[1]) : 4 << 20) / (int)sizeof(float);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  float *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
  if (!in || !out) MPI_Abort(MPI_COMM_WORLD, 1);
  for (int i = 0; i < count; i++) in[i] = (float)(rank + 1);
  for (int n = 0; n < ITERATIONS; n++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = MPI_Wtime();
    MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    seconds = MPI_Wtime() - seconds;
    for (int i = 0; i < count; i++) wrong += out[i] != (float)(size * (size + 1) / 2);
    /* Algorithm and bus bandwidth as nccl-tests define them. */
    double algorithm = count * sizeof *in * 8.0 / seconds, bus = algorithm * 2 * (size - 1) / size;
    if (rank == 0)
      printf("{\"iteration\": %d, \"ranks\": %d, \"bytes\": %zu, \"seconds\": %.6f, "
             "\"algorithm_bandwidth\": %.0f, \"bus_bandwidth\": %.0f, \"mismatches\": %d}\n",
             n, size, count * sizeof *in, seconds, algorithm, bus, wrong);
  }
  MPI_Finalize();
  return wrong != 0;
}
