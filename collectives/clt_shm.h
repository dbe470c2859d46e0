/* clt_shm: memory that the ranks of one host share. Not for other folders. */
#ifndef CLT_SHM_H
#define CLT_SHM_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/clt_group.h"

/* Writes a new name for clt_shm_share, "/cltrain.WHAT.PID.TIME" of this process, into `name`. `what`: at most
 * 16 lower-case letters that say what the memory is for. */
enum { CLT_SHM_NAME = 64 };
void clt_shm_new_name(const char *what, char name[CLT_SHM_NAME]);

/* Removes what dead jobs left in `folder` (CLT_SHM_FOLDER): a job that is killed between the creation of a
 * name and its removal leaves one. Such a file has a name of clt_shm_new_name's form, belongs to this user,
 * is older than `age` seconds, and its process does not exist. Returns how many files were removed; errors
 * are ignored, because another start may be doing the same. */
#define CLT_SHM_FOLDER "/dev/shm"
int clt_shm_sweep(const char *folder, double age);

/* A collective of the ranks of g: returns the same status on all of them, CLT_OK only if `mine` is CLT_OK on
 * all of them. */
typedef clt_status (*clt_shm_agree)(clt_group *g, clt_status mine);
/* Bytes [begin, begin + bytes) of shared memory. */
typedef struct {
    size_t begin, bytes;
} clt_shm_part;
/* Maps memory of `bytes` bytes, page aligned and zeroed, that several ranks of one host share. All ranks of g
 * must call it together. Ranks that pass the same `name` share one memory; they must all be on one host, pass
 * the same `bytes`, and exactly one of them must pass first = true. own: the part that this rank writes most;
 * it reserves that part, so the system places it on this rank's NUMA node. The parts of all ranks together
 * are the whole memory. `name` is one of clt_shm_new_name. It is
 * removed as soon as all ranks have opened the memory, so that a run that is killed later leaves nothing
 * behind; clt_shm_sweep removes what an earlier kill leaves. The caller releases *out with clt_shm_unmap.
 * Errors, the same on all ranks of g: CLT_IO if the name cannot be created or opened, CLT_NO_MEMORY if the
 * memory cannot be reserved or mapped, and failures of `agree`. *out is NULL after a failure. */
clt_status clt_shm_share(clt_group *g, clt_shm_agree agree, const char *name, size_t bytes, bool first,
                         clt_shm_part own, void **out);
/* Unmaps the memory of clt_shm_share, of `bytes` bytes, in this process only. p NULL: does nothing. */
void clt_shm_unmap(void *p, size_t bytes);
/* Bytes of /dev/shm that this user can still reserve; UINT64_MAX if unknown. */
uint64_t clt_shm_free(void);

/* One pause of a loop that waits for other processes: the first 199 calls of a wait only yield the processor,
 * the next ones sleep 50 us, and from call 2000 on each sleeps 1 ms. *spins counts the calls of one wait; the
 * caller sets it to 0 before the first. */
void clt_wait_pause(unsigned *spins);

#endif
