/* logits_error A B V: the largest difference between two files of f32 logits [rows, V], over the largest magnitude of its row in B; and at how
 * many rows the likeliest is another. "ERROR ROWS". Exit 1 if sizes differ or a value is not finite, 2 if a file cannot be read. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static float *load(const char *path, long *count)
{
	FILE *file = fopen(path, "rb");
	if (!file || fseek(file, 0, SEEK_END) != 0) return NULL;
	*count = ftell(file) / (long)sizeof(float);
	float *values = malloc((size_t)*count * sizeof(float) + 1);
	rewind(file);
	if (values && fread(values, sizeof(float), (size_t)*count, file) != (size_t)*count) return NULL;
	fclose(file);
	return values;
}

int main(int argc, char **argv)
{
	long na = 0, nb = 0, width = argc == 4 ? atol(argv[3]) : 0, other = 0;
	float *a = width > 0 ? load(argv[1], &na) : NULL, *b = a ? load(argv[2], &nb) : NULL;
	if (!a || !b) return fprintf(stderr, "logits_error: cannot read the files\n"), 2;
	if (na != nb || na % width) return fprintf(stderr, "logits_error: %ld and %ld values of rows of %ld\n", na, nb, width), 1;
	double worst = 0;
	for (long row = 0; row < na; row += width) {
		double error = 0, size = 0;
		long top_a = row, top_b = row;
		for (long i = row; i < row + width; i++) {
			if (!isfinite(a[i]) || !isfinite(b[i])) return fprintf(stderr, "logits_error: value %ld is %g and %g\n", i, a[i], b[i]), 1;
			error = fmax(error, fabs((double)a[i] - b[i]));
			size = fmax(size, fabs((double)b[i]));
			if (a[i] > a[top_a]) top_a = i;
			if (b[i] > b[top_b]) top_b = i;
		}
		worst = fmax(worst, error / size);
		other += top_a != top_b;
	}
	printf("%.3g %ld\n", worst, other);
	free(a);
	free(b);
	return 0;
}
