# SPDX-License-Identifier: Apache-2.0
#
# The functions that the folders' CMakeLists.txt are written with.

# Adds a folder of the tree if it has a CMakeLists.txt and its parent has not added it already.
function(cairn_add_folder folder)
    set(path "${PROJECT_SOURCE_DIR}/${folder}")
    if(NOT EXISTS "${path}/CMakeLists.txt")
        return()
    endif()
    get_property(added GLOBAL PROPERTY cairn_added_folders)
    cmake_path(GET path PARENT_PATH parent)
    if(parent IN_LIST added)
        get_property(siblings DIRECTORY "${parent}" PROPERTY SUBDIRECTORIES)
        if(path IN_LIST siblings)
            return()
        endif()
    endif()
    add_subdirectory("${path}" "${PROJECT_BINARY_DIR}/${folder}")
    set_property(GLOBAL APPEND PROPERTY cairn_added_folders "${path}")
endfunction()

# The include roots of the current folder: proto, its own side, and both sides for tools and tests.
function(cairn_include_roots ret)
    cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}"
               OUTPUT_VARIABLE folder)
    set(roots proto)
    if(folder MATCHES "^(server|tools|tests)(/|$)")
        list(APPEND roots server)
    endif()
    if(folder MATCHES "^(client|tools|tests)(/|$)")
        list(APPEND roots client client/include)
    endif()
    if(folder MATCHES "^tests(/|$)")
        list(APPEND roots tests)
    endif()
    list(TRANSFORM roots PREPEND "${PROJECT_SOURCE_DIR}/")
    set(${ret} "${roots}" PARENT_SCOPE)
endfunction()

# What layers, programs and tests share.
function(cairn_target_defaults target)
    cairn_include_roots(roots)
    target_include_directories(${target} PRIVATE ${roots})
    target_link_libraries(${target} PRIVATE cairn_flags)
    target_compile_definitions(${target} PRIVATE CAIRN_VERSION="${PROJECT_VERSION}")
endfunction()

# cairn_layer(NAME SOURCES a.c ... [DEPS base ...] [LIBS PkgConfig::X ...])
# A static library cairn_NAME of position-independent code. DEPS are other layers, by their short
# names; LIBS are foreign libraries, whose headers stay private to the layer.
function(cairn_layer name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS;LIBS")
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "cairn_layer(${name}): unknown words: ${arg_UNPARSED_ARGUMENTS}")
    endif()
    set(target cairn_${name})
    add_library(${target} STATIC ${arg_SOURCES})
    cairn_target_defaults(${target})
    list(TRANSFORM arg_DEPS PREPEND cairn_)
    target_link_libraries(${target} PUBLIC ${arg_DEPS} PRIVATE ${arg_LIBS})
endfunction()

# cairn_program(NAME SOURCES a.c ... [LIBS cairn_x ...] [INSTALL bin|sbin])
# An executable. INSTALL puts it into a package (bin: the client's, sbin: the server's); without it the program is for tests
# and examples.
function(cairn_program name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "INSTALL" "SOURCES;LIBS")
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "cairn_program(${name}): unknown words: ${arg_UNPARSED_ARGUMENTS}")
    endif()
    add_executable(${name} ${arg_SOURCES})
    cairn_target_defaults(${name})
    target_link_libraries(${name} PRIVATE ${arg_LIBS})
    set_target_properties(${name} PROPERTIES
                          RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
    if(CAIRN_HARDEN)
        target_link_options(${name} PRIVATE -Wl,-z,nodlopen)
    endif()
    if(arg_INSTALL STREQUAL "bin")
        install(TARGETS ${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT client)
    elseif(arg_INSTALL STREQUAL "sbin")
        install(TARGETS ${name} RUNTIME DESTINATION "${CMAKE_INSTALL_SBINDIR}" COMPONENT server)
    elseif(arg_INSTALL)
        message(FATAL_ERROR "cairn_program(${name}): INSTALL is bin or sbin")
    endif()
endfunction()

# cairn_test_settings(NAME [LABEL unit|sim|e2e|kill|shim|python|bench|lint] [TIMEOUT seconds] [SERIAL])
# Label, time limit and the sanitizers' environment of one ctest test. The limit is for what hangs: the longest of the
# tests without one of their own take 15 s alone, and four times that on a machine that does other work besides.
# Half of the work of a short test under AddressSanitizer is the shadow of large buffers: it is cleared in place, and the stacks
# of allocations are ten calls deep.
function(cairn_test_settings name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "LABEL;TIMEOUT" "")
    if(NOT arg_LABEL)
        set(arg_LABEL unit)
    endif()
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 400)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" TIMEOUT "${arg_TIMEOUT}")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
        "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=0:malloc_context_size=10:clear_shadow_mmap_threshold=1073741824"
        "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
        "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
    set_property(TEST ${name} PROPERTY SKIP_RETURN_CODE 77)
    if(arg_SERIAL)
        set_property(TEST ${name} PROPERTY RUN_SERIAL ON)
    endif()
endfunction()

# cairn_unit_rig(NAME SOURCES a.c ... LIBS cairn_x ...)
# What several cmocka executables share, compiled once; its header is found by whoever links it.
function(cairn_unit_rig name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
    add_library(${name} OBJECT ${arg_SOURCES})
    cairn_target_defaults(${name})
    target_include_directories(${name} INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_link_libraries(${name} PUBLIC ${arg_LIBS} PRIVATE PkgConfig::CMOCKA cairn_unit_flags)
endfunction()

# cairn_unit_test(NAME SOURCES test_x.c ... [LIBS cairn_x ...] [LABEL l] [TIMEOUT s] [SERIAL]
#                 [ARGS a ...])
# A cmocka executable, registered with ctest under NAME.
function(cairn_unit_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "LABEL;TIMEOUT" "SOURCES;LIBS;ARGS")
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "cairn_unit_test(${name}): unknown words: ${arg_UNPARSED_ARGUMENTS}")
    endif()
    add_executable(${name} ${arg_SOURCES})
    cairn_target_defaults(${name})
    target_link_libraries(${name} PRIVATE ${arg_LIBS} cairn_test_main PkgConfig::CMOCKA cairn_unit_flags)
    add_test(NAME ${name} COMMAND ${name} ${arg_ARGS})
    if(NOT arg_LABEL OR arg_LABEL STREQUAL "unit")
        set_property(GLOBAL APPEND PROPERTY cairn_unit_tests ${name})
    endif()
    set(serial "")
    if(arg_SERIAL)
        set(serial SERIAL)
    endif()
    cairn_test_settings(${name} LABEL "${arg_LABEL}" TIMEOUT "${arg_TIMEOUT}" ${serial})
endfunction()

# cairn_script_test(NAME COMMAND program args ... [LABEL l] [TIMEOUT s] [SERIAL])
# A test that is a script: exit 0 passed, 77 skipped, anything else failed.
function(cairn_script_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "LABEL;TIMEOUT" "COMMAND")
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "cairn_script_test(${name}): unknown words: ${arg_UNPARSED_ARGUMENTS}")
    endif()
    add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set(serial "")
    if(arg_SERIAL)
        set(serial SERIAL)
    endif()
    cairn_test_settings(${name} LABEL "${arg_LABEL}" TIMEOUT "${arg_TIMEOUT}" ${serial})
endfunction()

# The targets of a folder and of those below it.
function(cairn_targets_below folder ret)
    get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
    get_property(folders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
    foreach(below IN LISTS folders)
        cairn_targets_below("${below}" more)
        list(APPEND targets ${more})
    endforeach()
    set(${ret} "${targets}" PARENT_SCOPE)
endfunction()

# cairn_target_without_unit_tests(NAME)
# A target that builds everything but the programs of the unit tests.
function(cairn_target_without_unit_tests name)
    cairn_targets_below("${PROJECT_SOURCE_DIR}" targets)
    get_property(unit_tests GLOBAL PROPERTY cairn_unit_tests)
    list(REMOVE_ITEM targets ${unit_tests})
    add_custom_target(${name})
    foreach(target IN LISTS targets)
        get_target_property(type ${target} TYPE)
        if(NOT type MATCHES "^(OBJECT|INTERFACE)_LIBRARY$")
            add_dependencies(${name} ${target})
        endif()
    endforeach()
endfunction()
