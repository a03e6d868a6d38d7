/* A small MPI job: a halo exchange and a sum at each step, that fails where it is told to.
 *   stencil KIND RANK STEP STEPS     KIND: none abort segv kill exit truncate sleep */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void relax(double *cells, int *neighbour) { cells[*neighbour] = 0.5; }

static void fail(const char *kind, int rank, double *cells) {
    if (!strcmp(kind, "abort")) {
        fprintf(stderr, "FATAL: rank %d: CFL condition violated: dt=0.125 > 0.100\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 17);
    } else if (!strcmp(kind, "segv")) {
        relax(cells, NULL);
    } else if (!strcmp(kind, "kill")) {
        raise(SIGKILL);
    } else if (!strcmp(kind, "exit")) {
        exit(3);
    } else if (!strcmp(kind, "truncate")) {
        int size;
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        MPI_Send(cells, 8, MPI_DOUBLE, (rank + 1) % size, 0, MPI_COMM_WORLD);
    } else if (!strcmp(kind, "sleep")) {
        sleep(600);
    }
}

int main(int argc, char **argv) {
    int rank, size, length;
    char host[MPI_MAX_PROCESSOR_NAME];
    double cells[64] = {1.0}, halo = 0, sum = 0;
    const char *kind = argc > 1 ? argv[1] : "none";
    int chosen = argc > 2 ? atoi(argv[2]) : -1, when = argc > 3 ? atoi(argv[3]) : 5;
    int steps = argc > 4 ? atoi(argv[4]) : 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    printf("rank %d of %d on %s\n", rank, size, host);
    fflush(stdout);
    for (int step = 1; step <= steps; step++) {
        usleep(100000);
        if (rank == chosen && step == when) fail(kind, rank, cells);
        MPI_Sendrecv(cells, 1, MPI_DOUBLE, (rank + 1) % size, 0, &halo, 1, MPI_DOUBLE, (rank + size - 1) % size, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        cells[1] = 0.5 * (cells[0] + halo);
        MPI_Allreduce(cells + 1, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("step %d residual %.6f\n", step, sum / step);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
