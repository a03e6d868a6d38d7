/* A stand-in for libnvidia-ml.so.1 that answers from a text file beside itself. README.md has the file's form.
 * Layouts and numbers: NVIDIA's nvml.h, as nvidia-ml-py 13.615.71 declares them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE 4096
#define MOST_GPUS 64
#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define RECOVERY_FIELD 230
#define NOT_AVAILABLE (~0ULL)

static const struct { const char *word; int code; const char *text; } ANSWERS[] = {
    {"uninitialized", 1, "Uninitialized"},
    {"invalid_argument", INVALID_ARGUMENT, "Invalid Argument"},
    {"not_supported", NOT_SUPPORTED, "Not Supported"},
    {"no_permission", 4, "Insufficient Permissions"},
    {"not_found", 6, "Not Found"},
    {"insufficient_power", 8, "Insufficient External Power"},
    {"driver_not_loaded", DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {"timeout", 10, "Timeout"},
    {"irq_issue", 11, "Interrupt Request Issue"},
    {"function_not_found", 13, "Function Not Found"},
    {"corrupted_inforom", 14, "Corrupted infoROM"},
    {"gpu_is_lost", 15, "GPU is lost"},
    {"reset_required", 16, "GPU requires reset"},
    {"operating_system", 17, "The operating system has blocked the request."},
    {"lib_rm_version_mismatch", 18, "Driver/library version mismatch"},
    {"memory", 20, "Insufficient Memory"},
    {"deprecated", 26, "Requested functionality has been deprecated"},
    {"unknown", 999, "Unknown Error"},
};

typedef struct { int index; } Device;
static Device devices[MOST_GPUS];

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} Pci;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, result;
    union { unsigned number; unsigned long long wide; } value;
} FieldValue;

typedef struct { unsigned version; int sensor, degrees; } Temperature;

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} Process;

static FILE *state(void) {
    static const char *const DEFAULT = "default";
    Dl_info info;
    char library[PATH_MAX], path[PATH_MAX + NAME_MAX];
    const char *node = getenv("SLURMD_NODENAME");
    FILE *file = NULL;
    if (!dladdr((void *)&ANSWERS, &info) || strlen(info.dli_fname) >= sizeof library) return NULL;
    strcpy(library, info.dli_fname);
    const char *folder = dirname(library);
    if (node && *node && !strchr(node, '/') && strlen(node) < NAME_MAX) {
        snprintf(path, sizeof path, "%s/%s.nvml", folder, node);
        file = fopen(path, "re");
    }
    if (!file) {
        snprintf(path, sizeof path, "%s/%s.nvml", folder, DEFAULT);
        file = fopen(path, "re");
    }
    return file;
}

/* The value of a key in `value`; 0 where there is none. */
static int look_up(const char *key, char value[LINE]) {
    FILE *file = state();
    char line[LINE];
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        size_t length = strlen(key);
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) || line[length] != '=') continue;
        strcpy(value, line + length + 1);
        found = 1;
    }
    fclose(file);
    return found;
}

/* What the words `hang`, `crash` and the names of errors do; SUCCESS for any other text. */
static int answer(const char *value) {
    if (!strcmp(value, "hang"))
        for (;;) pause();
    if (!strcmp(value, "crash")) raise(SIGSEGV);
    for (size_t i = 0; i < sizeof ANSWERS / sizeof *ANSWERS; i++)
        if (!strcmp(value, ANSWERS[i].word)) return ANSWERS[i].code;
    return SUCCESS;
}

static int of_gpu(const Device *device, const char *what, char value[LINE]) {
    char key[64];
    int result = SUCCESS;
    if (device < devices || device >= devices + MOST_GPUS) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "gpu%d", device->index);
    if (look_up(key, value)) result = answer(value);
    if (result != SUCCESS) return result;
    snprintf(key, sizeof key, "gpu%d.%s", device->index, what);
    return look_up(key, value) ? answer(value) : NOT_SUPPORTED;
}

static int text_of_gpu(const Device *device, const char *what, char *text, unsigned size) {
    char value[LINE];
    int result = of_gpu(device, what, value);
    if (result != SUCCESS) return result;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(text, value);
    return SUCCESS;
}

static int number_of_gpu(const Device *device, const char *what, unsigned long long *number) {
    char value[LINE];
    int result = of_gpu(device, what, value);
    if (result == SUCCESS) *number = strtoull(value, NULL, 0);
    return result;
}

int nvmlInitWithFlags(unsigned flags) {
    char value[LINE];
    FILE *file = state();
    (void)flags;
    if (!file) return DRIVER_NOT_LOADED;
    fclose(file);
    for (int i = 0; i < MOST_GPUS; i++) devices[i].index = i;
    return look_up("init", value) ? answer(value) : SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    for (size_t i = 0; i < sizeof ANSWERS / sizeof *ANSWERS; i++)
        if (ANSWERS[i].code == code) return ANSWERS[i].text;
    return "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    char value[LINE];
    int result = look_up("driver", value) ? answer(value) : NOT_SUPPORTED;
    if (result == SUCCESS) snprintf(text, size, "%s", value);
    return result;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    char value[LINE];
    int result = look_up("gpus", value) ? answer(value) : NOT_SUPPORTED;
    if (result == SUCCESS) *count = (unsigned)strtoul(value, NULL, 0);
    return result;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    char value[LINE];
    if (index >= MOST_GPUS) return INVALID_ARGUMENT;
    int result = of_gpu(&devices[index], "handle", value);
    if (result == NOT_SUPPORTED) result = SUCCESS;
    if (result == SUCCESS) *device = &devices[index];
    return result;
}

int nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    return text_of_gpu(device, "pci", pci->id, sizeof pci->id);
}

int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) { return text_of_gpu(device, "uuid", text, size); }

int nvmlDeviceGetName(Device *device, char *text, unsigned size) { return text_of_gpu(device, "name", text, size); }

int nvmlDeviceGetTotalEccErrors(Device *device, int type, int counter, unsigned long long *count) {
    if (type != 1 || counter != 0) return NOT_SUPPORTED; /* uncorrected, volatile */
    return number_of_gpu(device, "ecc", count);
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed) {
    char value[LINE];
    int result = of_gpu(device, "remap", value);
    *correctable = *uncorrectable = *pending = *failed = 0;
    if (result == SUCCESS && sscanf(value, "%u,%u", pending, failed) != 2) return INVALID_ARGUMENT;
    return result;
}

int nvmlDeviceGetRetiredPagesPendingStatus(Device *device, unsigned *pending) {
    unsigned long long number = 0;
    int result = number_of_gpu(device, "retired", &number);
    *pending = (unsigned)number;
    return result;
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    for (int i = 0; i < count; i++) {
        unsigned long long number = 0;
        values[i].result = NOT_SUPPORTED;
        if (values[i].field == RECOVERY_FIELD) values[i].result = number_of_gpu(device, "recovery", &number);
        values[i].type = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
        values[i].value.number = (unsigned)number;
    }
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *active) {
    char value[LINE];
    int result = of_gpu(device, "links", value);
    if (result != SUCCESS) return result;
    if (link >= strlen(value)) return INVALID_ARGUMENT;
    *active = value[link] == '1';
    return value[link] == '-' ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) {
    return number_of_gpu(device, "clocks", reasons);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) {
    return number_of_gpu(device, "throttle", reasons);
}

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *degrees) {
    unsigned long long number = 0;
    int result = sensor ? INVALID_ARGUMENT : number_of_gpu(device, "temperature", &number);
    *degrees = (unsigned)number;
    return result;
}

int nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) {
    unsigned long long number = 0;
    if (temperature->version != 0x100000C || temperature->sensor) return INVALID_ARGUMENT;
    int result = number_of_gpu(device, "temperature_v", &number);
    temperature->degrees = (int)number;
    return result;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    unsigned long long number = 0;
    int result = number_of_gpu(device, "mig", &number);
    *current = *pending = (unsigned)number;
    return result;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    char value[LINE], *rest = NULL;
    unsigned room = *count, found = 0;
    int result = of_gpu(device, "processes", value);
    if (result != SUCCESS) return result;
    for (char *word = strtok_r(value, ",", &rest); word; word = strtok_r(NULL, ",", &rest), found++) {
        char *end;
        unsigned long pid = strtoul(word, &end, 10);
        if (found >= room || !processes) continue;
        memset(&processes[found], 0, sizeof processes[found]);
        processes[found].pid = (unsigned)pid;
        processes[found].memory = *end == ':' && end[1] ? strtoull(end + 1, NULL, 10) : NOT_AVAILABLE;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
