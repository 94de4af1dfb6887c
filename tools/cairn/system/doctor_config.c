/* SPDX-License-Identifier: Apache-2.0
 *
 * See doctor_config.h. It judges by the daemon's own reader and checks, so it says what the daemon
 * would say. One thread.
 */
#include "doctor_config.h"

#include "daemon/config.h"
#include "daemon/listeners.h"
#include "net/stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DAY_S = 86400, EXPIRES_SOON_DAYS = 30 };

/* Returns whether a scheduler of this host has the job, as deploy/ installs it. */
static bool is_scheduled(const char *job)
{
    char path[128];
    snprintf(path, sizeof(path), "/etc/systemd/system/timers.target.wants/cairn-%s.timer", job);
    return access(path, F_OK) == 0 || access("/etc/cron.d/cairn", F_OK) == 0;
}

static void judge_certificate(const char *what, const char *file, int64_t now_s,
                              struct doctor *doctor)
{
    struct diag why = DIAG_INIT;
    int64_t ends_s = 0;
    int status = tls_certificate_ends(file, &ends_s, &why);
    int64_t days = (ends_s - now_s) / DAY_S;
    if (status != 0) {
        doctor_add(doctor, DOCTOR_UNSAFE, "certificates", "%s", diag_text(&why, status));
        doctor_remedy(doctor, "put a readable PEM file there");
        return;
    }
    bool is_over = ends_s <= now_s;
    doctor_add(doctor,
               is_over                    ? DOCTOR_UNSAFE
               : days < EXPIRES_SOON_DAYS ? DOCTOR_WARNING
                                          : DOCTOR_GOOD,
               "certificates", "%s %s %s %" PRId64 " days%s", what, file,
               is_over ? "expired" : "expires in", is_over ? -days : days, is_over ? " ago" : "");
    if (is_over || days < EXPIRES_SOON_DAYS) {
        doctor_remedy(doctor,
                      "issue a new one, and reload the daemon (SIGHUP), or restart it if [http] "
                      "tls = yes");
    }
}

static void judge_certificates(const struct config *config, int64_t now_s, struct doctor *doctor)
{
    struct diag why = DIAG_INIT;
    int status = listeners_check(config, &why);
    if (status != 0) {
        doctor_add(doctor, DOCTOR_UNSAFE, "listeners", "%s", diag_text(&why, status));
        doctor_remedy(doctor, "the daemon does not start with it; correct [listen] and [tls]");
    } else if (config->tls_cert[0] != '\0') {
        doctor_add(doctor, DOCTOR_GOOD, "listeners", "certificate, key and authority fit together");
    }
    if (config->tls_cert[0] != '\0') {
        judge_certificate("the server's certificate", config->tls_cert, now_s, doctor);
        judge_certificate("the authority", config->tls_ca, now_s, doctor);
    }
}

/* Says who does a duty: the daemon by itself, a timer, or nobody. */
static void judge_duty(const char *check, bool by_daemon, const char *key, struct doctor *doctor)
{
    bool by_timer = is_scheduled(check);
    doctor_add(doctor, by_daemon || by_timer ? DOCTOR_GOOD : DOCTOR_WARNING, check, "%s",
               by_daemon ? "the daemon does it by itself"
               : by_timer
                   ? "a timer or crontab of this host does it"
                   : "nobody does it: neither the daemon nor a timer or crontab of this host");
    if (!by_daemon && !by_timer) {
        doctor_remedy(doctor, "set %s, or install the timers of deploy/", key);
    }
}

void doctor_config(const char *path, int64_t now_s, struct doctor *doctor)
{
    struct config *config = calloc(1, sizeof(*config));
    struct diag why = DIAG_INIT;
    if (!config) {
        doctor_add(doctor, DOCTOR_WARNING, "configuration", "there is no memory to read it");
        return;
    }
    config_defaults(config);
    int status = config_read(config, path, &why);
    status = status != 0 ? status : config_check(config, &why);
    if (status != 0) {
        doctor_add(doctor, DOCTOR_UNSAFE, "configuration", "%s: %s", path, diag_text(&why, status));
        doctor_remedy(doctor,
                      "the daemon does not start with it; correct it and try `cairnd "
                      "--check-config --config %s`",
                      path);
    } else {
        doctor_add(doctor, DOCTOR_GOOD, "configuration", "%s: the daemon takes it", path);
        judge_certificates(config, now_s, doctor);
        judge_duty("forget", config->retention_ms > 0, "[retention] interval", doctor);
        judge_duty("gc", config->gc_every_ms > 0, "[gc] every", doctor);
        judge_duty("scrub", config->scrub_every_ms > 0, "[scrub] every", doctor);
    }
    free(config);
}
