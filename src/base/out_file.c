#include "base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

#define NAME_TRIES 1000 /* names of one process beside one path */

static enum status refuse(const char *path, struct error *err)
{
	return FAIL(err, IO, "%.300s: cannot be written: %s; give a folder with room where you may write", path, strerror(errno));
}

/* A new file beside `path`; -1: errno says why. */
static int create_beside(struct buf *name, const char *path, struct error *err)
{
	for (int i = 0; i < NAME_TRIES; i++) {
		buf_clear(name);
		if (buf_printf(name, err, "%s.part-%ld-%d", path, (long)getpid(), i) != STATUS_OK) return -1;
		const int fd = open(name->data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd >= 0 || errno != EEXIST) return fd;
	}
	return -1;
}

static enum status open_beside(struct out_file *out, const char *path, const struct stat *replaced, struct error *err)
{
	struct buf name = {0};
	const int fd = create_beside(&name, path, err);
	if (fd < 0) {
		buf_fini(&name);
		return refuse(path, err);
	}
	out->beside = name.data;
	out->path = strdup(path);
	out->file = fdopen(fd, "wb");
	if (!out->file) close(fd);
	if (out->file && out->path && (!replaced || fchmod(fd, replaced->st_mode & 07777) == 0)) return STATUS_OK;
	enum status st = refuse(path, err);
	out_file_drop(out);
	return st;
}

enum status out_file_open(struct out_file *out, const char *path, struct error *err)
{
	struct stat info;
	if (lstat(path, &info) != 0) return errno == ENOENT ? open_beside(out, path, NULL, err) : refuse(path, err);
	char *target = realpath(path, NULL);
	enum status st = STATUS_OK;
	if (target && stat(target, &info) == 0 && S_ISREG(info.st_mode)) {
		st = access(target, W_OK) == 0 ? open_beside(out, target, &info, err) : refuse(path, err);
	} else {
		out->file = fopen(path, "wbe");
		if (!out->file) st = refuse(path, err);
	}
	free(target);
	return st;
}

enum status out_file_commit(struct out_file *out, const char *path, struct error *err)
{
	enum status st = STATUS_OK;
	int why = ferror(out->file) ? errno : 0;
	if (fclose(out->file) != 0 && !why) why = errno;
	out->file = NULL;
	if (!why && out->beside && rename(out->beside, out->path) != 0) why = errno;
	if (why) {
		errno = why;
		st = refuse(path, err);
	} else {
		free(out->beside);
		out->beside = NULL; /* there is none any more */
	}
	out_file_drop(out);
	return st;
}

void out_file_drop(struct out_file *out)
{
	if (out->file) fclose(out->file);
	if (out->beside) (void)unlink(out->beside);
	free(out->beside);
	free(out->path);
	*out = (struct out_file){0};
}

enum status out_file_write(const char *path, const void *data, size_t n, struct error *err)
{
	struct out_file out = {0};
	TRY(out_file_open(&out, path, err));
	(void)!fwrite(data, 1, n, out.file); /* commit tells */
	return out_file_commit(&out, path, err);
}
