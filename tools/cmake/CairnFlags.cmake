# SPDX-License-Identifier: Apache-2.0
#
# Language, warnings, sanitizers, hardening: everything that holds for each of our own targets.
# Flags sit on the interface target cairn_flags, so that generated and foreign code stays free of them.
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# What every object file of the build shares, generated code included.
add_library(cairn_abi INTERFACE)
target_compile_definitions(cairn_abi INTERFACE _GNU_SOURCE)
target_link_libraries(cairn_abi INTERFACE Threads::Threads)

if(CAIRN_SANITIZE STREQUAL "address")
    set(cairn_sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(CAIRN_SANITIZE STREQUAL "thread")
    set(cairn_sanitize -fsanitize=thread)
elseif(NOT CAIRN_SANITIZE STREQUAL "")
    message(FATAL_ERROR "CAIRN_SANITIZE is '${CAIRN_SANITIZE}'; it may be address, thread or empty")
endif()
if(CAIRN_SANITIZE)
    target_compile_options(cairn_abi INTERFACE ${cairn_sanitize} -fno-omit-frame-pointer)
    target_link_options(cairn_abi INTERFACE ${cairn_sanitize})
endif()

if(CAIRN_COVERAGE)
    target_compile_options(cairn_abi INTERFACE --coverage -fprofile-update=atomic)
    target_link_options(cairn_abi INTERFACE --coverage)
endif()

# -fstrict-flex-arrays=3 and -fhardened belong here once the oldest supported gcc is 14. Programs are
# PIE by CMAKE_POSITION_INDEPENDENT_CODE. nodlopen is for programs only (cairn_program): libcairn is
# loaded with dlopen by Python.
if(CAIRN_HARDEN)
    # Where the tree and the build folder lie does not show in what is shipped: the same sources give the same bytes.
    target_compile_options(cairn_abi INTERFACE
        "-ffile-prefix-map=${PROJECT_BINARY_DIR}=build" "-ffile-prefix-map=${PROJECT_SOURCE_DIR}=cairn-${PROJECT_VERSION}"
        -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-clash-protection -fstack-protector-strong
        -ftrivial-auto-var-init=zero
        $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>:-fcf-protection=full>)
    target_link_options(cairn_abi INTERFACE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endif()

add_library(cairn_flags INTERFACE)
target_link_libraries(cairn_flags INTERFACE cairn_abi)
target_compile_options(cairn_flags INTERFACE
    -Wall -Wextra -Wshadow -Wconversion -Wswitch -Wmissing-prototypes -Wstrict-prototypes -Wformat=2
    -Wimplicit-fallthrough -Wpointer-arith -Wwrite-strings -Wvla -Walloca -Wundef)
if(CAIRN_WERROR)
    target_compile_options(cairn_flags INTERFACE -Werror)
endif()
if(CAIRN_TESTING)
    target_compile_definitions(cairn_flags INTERFACE CAIRN_TESTING)
endif()

# For cmocka programs: each test gets a state, and most tests need none. Linked last, after the flags that it undoes.
add_library(cairn_unit_flags INTERFACE)
target_compile_options(cairn_unit_flags INTERFACE -Wno-unused-parameter)

