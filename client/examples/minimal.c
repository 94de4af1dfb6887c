/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest program that saves and restores: one tensor, one rank. Run it twice: the second run
 * goes on counting.
 *
 *     cairn-minimal 'cairn+unix:///run/cairn/cairnd.sock?run=demo/minimal'
 */
#include "cairn.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    float weights[1000] = {0};
    const int64_t shape[1] = {1000};
    struct cairn_tensor tensor = CAIRN_TENSOR_INIT;
    struct cairn_result from = CAIRN_RESULT_INIT;
    struct cairn_error err;
    cairn_t *cairn = NULL;
    cairn_op_t *op = NULL;
    tensor.name = "weights", tensor.dtype = CAIRN_F32, tensor.data = weights;
    tensor.ndim = 1, tensor.shape = shape;

    if (cairn_open(argc > 1 ? argv[1] : "cairn:///demo/minimal", NULL, &cairn, &err) != 0 ||
        cairn_set_tensors(cairn, &tensor, 1, &err) != 0 ||
        cairn_restore(cairn, NULL, &op, &err) != 0) {
        goto out;
    }
    int rc = cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err);
    rc = rc == 0 ? cairn_op_result(op, &from, &err) : rc;
    /* A run that is proven to have nothing yet begins with zeros. */
    if (rc != 0 && !cairn_op_run_is_empty(op)) {
        goto out;
    }
    cairn_op_free(op);
    op = NULL;

    weights[0] += 1; /* "training" */
    if (cairn_save(cairn, from.step + 1, NULL, &op, &err) != 0 ||
        cairn_op_wait(op, CAIRN_DONE, 60000, &err) != 0) {
        goto out;
    }
    printf("step %llu is durable, weights[0] is %g\n", (unsigned long long)from.step + 1,
           (double)weights[0]);
    cairn_op_free(op);
    return cairn_close(cairn, 10000, &err) != 0;
out:
    fprintf(stderr, "%s: %s\n", cairn_err_name(err.code), err.text);
    cairn_op_free(op);
    if (cairn != NULL) {
        (void)cairn_close(cairn, 10000, NULL); /* the first error is told */
    }
    return 1;
}
