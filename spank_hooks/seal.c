/*
 * Run when the plugin is built: moves its ELF program headers to the end of the file.
 *
 * Where they usually are, a plugin that was cut short (a full disk, a copy that was broken off) still opens, and glibc
 * then reads beyond its end: SIGBUS, for sbatch, slurmd and every step, whatever `optional` says. With the headers at
 * the end a file that lacks a byte does not open ("cannot read file data"), and Slurm goes on without it.
 * glibc copies headers that are in no segment: elf/dl-load.c, "The program header is not contained in any".
 */
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_HEADERS 64
#define LARGEST_PAGE 65536 /* of Linux's machines: the headers get a page of their own, so no segment covers them */

static bool read_all(int file, void *data, size_t size, off_t at)
{
	return pread(file, data, size, at) == (ssize_t)size;
}

static bool write_all(int file, const void *data, size_t size, off_t at)
{
	return pwrite(file, data, size, at) == (ssize_t)size;
}

static bool is_ours(const ElfW(Ehdr) *header)
{
	unsigned char class = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;

	return memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_CLASS] == class &&
	       header->e_phentsize == sizeof(ElfW(Phdr)) && header->e_phnum > 0 && header->e_phnum <= MOST_HEADERS;
}

static bool seal(int file)
{
	ElfW(Ehdr) header;
	ElfW(Phdr) table[MOST_HEADERS];
	struct stat status;
	off_t end;

	if (fstat(file, &status) != 0 || !read_all(file, &header, sizeof(header), 0) || !is_ours(&header))
		return false;
	if (!read_all(file, table, header.e_phnum * sizeof(table[0]), (off_t)header.e_phoff))
		return false;
	end = (status.st_size + LARGEST_PAGE - 1) / LARGEST_PAGE * LARGEST_PAGE;
	header.e_phoff = (ElfW(Off))end;
	return write_all(file, table, header.e_phnum * sizeof(table[0]), end) &&
	       write_all(file, &header, sizeof(header), 0);
}

int main(int count, char *arguments[])
{
	int file = count == 2 ? open(arguments[1], O_RDWR | O_CLOEXEC) : -1;

	if (file < 0 || !seal(file) || close(file) != 0) {
		fprintf(stderr, "seal: %s: cannot move the program headers: is it a plugin for this machine?\n",
			count == 2 ? arguments[1] : "usage: seal FILE");
		return 1;
	}
	return 0;
}
