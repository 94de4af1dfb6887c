# SPDX-License-Identifier: Apache-2.0
#
# Finds every library with pkg-config and names everything that is missing in one message.
# Targets: PkgConfig::LIBUV, PROTOBUF_C, OPENSSL, ZSTD, ISAL, XXHASH, INIH, JANSSON, MICROHTTPD, GNUTLS, CMOCKA.
# PROTOC_C: the protobuf-c compiler. The layer law fences their headers; link them PRIVATE.
find_package(PkgConfig)
find_package(Threads REQUIRED)
if(NOT PKG_CONFIG_FOUND)
    message(FATAL_ERROR "pkg-config is missing; run tools/install-packages")
endif()

set(cairn_missing "")

function(cairn_require prefix module package)
    pkg_check_modules(${prefix} QUIET IMPORTED_TARGET GLOBAL ${module})
    if(NOT ${prefix}_FOUND)
        list(APPEND cairn_missing "${module} (package ${package})")
        set(cairn_missing "${cairn_missing}" PARENT_SCOPE)
    endif()
endfunction()

cairn_require(LIBUV libuv libuv1-dev)
cairn_require(PROTOBUF_C libprotobuf-c libprotobuf-c-dev)
if(SKBUILD)
    # Into the Python extension, as an archive: TensorFlow exports BoringSSL's functions to the whole process, and the loader gives
    # them to whoever asks for OpenSSL's later. They have the same names and other structures.
    set(OPENSSL_USE_STATIC_LIBS ON)
    find_package(OpenSSL)
    if(OPENSSL_FOUND)
        add_library(PkgConfig::OPENSSL ALIAS OpenSSL::SSL)
    else()
        list(APPEND cairn_missing "libssl.a, libcrypto.a (package libssl-dev)")
    endif()
else()
    cairn_require(OPENSSL openssl libssl-dev)
endif()
cairn_require(ZSTD libzstd libzstd-dev)
cairn_require(ISAL libisal libisal-dev)
cairn_require(XXHASH libxxhash libxxhash-dev)
cairn_require(INIH inih libinih-dev)
cairn_require(JANSSON jansson libjansson-dev)
cairn_require(MICROHTTPD libmicrohttpd libmicrohttpd-dev)
cairn_require(GNUTLS gnutls libgnutls28-dev)
if(CAIRN_TESTS)
    cairn_require(CMOCKA cmocka libcmocka-dev)
endif()
# librados has no pkg-config file.
find_library(CAIRN_RADOS_LIBRARY rados DOC "librados")
find_path(CAIRN_RADOS_INCLUDE rados/librados.h DOC "folder of rados/librados.h")
if(NOT CAIRN_RADOS_LIBRARY OR NOT CAIRN_RADOS_INCLUDE)
    list(APPEND cairn_missing "librados (package librados-dev)")
endif()
find_program(PROTOC_C NAMES protoc-c DOC "protobuf-c compiler")
if(NOT PROTOC_C)
    list(APPEND cairn_missing "protoc-c (package protobuf-c-compiler)")
endif()

if(cairn_missing)
    list(JOIN cairn_missing "\n    " cairn_missing_text)
    message(FATAL_ERROR "these are missing:\n    ${cairn_missing_text}\n"
                        "run tools/install-packages and configure again")
endif()
